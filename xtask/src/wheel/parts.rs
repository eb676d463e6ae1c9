//! The C++ part for each PyTorch, built beforehand for those who have no compiler.
//!
//! It is compiled by g++, as PyTorch is: values that are one in a whole process are so with GNU's
//! unique symbols alone, and PyTorch's settings are such a value. What g++ takes from newer
//! libraries than the oldest system has is in `torch/older.cpp`; auditwheel judges whether that is
//! all.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use xshell::cmd;

use crate::peer::Peer;
use crate::repository::Repository;
use crate::torch::Torch;
use crate::wheels::Wheels;
use crate::{command, file};

/// The runtimes of the oldest and of the usual CUDA that PyTorch is made for, with their headers.
const RUNTIMES: [&str; 2] = ["nvidia-cuda-runtime-cu12==12.6.77", "nvidia-cuda-runtime==13.0.96"];
const WANTED: [&str; 3] = ["nvidia/cuda_runtime/", "nvidia/cu13/include/", "nvidia/cu13/lib/"];

/// Where each of the two has its headers, and its library.
const CUDAS: [(&str, &str); 2] = [
    ("nvidia/cuda_runtime/include", "nvidia/cuda_runtime/lib/libcudart.so.12"),
    ("nvidia/cu13/include", "nvidia/cu13/lib/libcudart.so.13"),
];

/// What a part may be linked to. Of other libraries that the process has by then it takes functions
/// of CUDA's runtime.
const LIBRARIES: &str = "libc10_cuda.so libc10.so liblarder.so libstdc++.so.6 libgcc_s.so.1 \
     libc.so.6 libm.so.6 ld-linux-x86-64.so.2";

/// A part, and the functions that it takes of CUDA's runtime, which PyTorch has brought in by then.
pub(super) struct Part {
    pub(super) file: PathBuf,
    pub(super) taken: BTreeSet<String>,
}

/// Where parts are built.
pub(super) struct Workshop<'a> {
    pub(super) repo: &'a Repository,
    pub(super) folder: PathBuf,
    /// The package's native module, whose functions they call.
    pub(super) native: &'a Path,
}

impl Workshop<'_> {
    /// Builds the part for a PyTorch.
    pub(super) fn build(&self, torch: Torch) -> Result<Part, String> {
        file::create(&self.folder)?;
        let cuda = self.folder.join("cuda");
        let what = "CUDA's runtimes";
        Wheels { what, pins: &RUNTIMES, wanted: &WANTED, files: cuda.clone() }.fetch(self.repo)?;
        let peer = Peer { repo: self.repo, torch };
        peer.fetch()?;
        let files = peer.torch();
        let [older, usual] = CUDAS.map(|(headers, _)| cuda.join(headers));
        let object = self.compile(&files, &usual)?;
        let bytes = |file: &Path| fs::read(file).map_err(file::named(file));
        let usual = bytes(&object)?;
        // One build is for all PyTorchs of this minor version, whatever CUDA they are made for.
        if bytes(&self.compile(&files, &older)?)? != usual {
            return Err(format!(
                "the C++ part for PyTorch {torch} is not the same with the headers of {} and of {}",
                RUNTIMES[0], RUNTIMES[1]
            ));
        }
        let file = self.folder.join(format!("torch-{}.so", torch.minor));
        self.link(&files, &object, &file, &[])?;
        // All that it wants a process with PyTorch has, whichever of the two CUDAs is there.
        for (_, runtime) in CUDAS {
            let all = ["-Wl,--no-undefined".into(), cuda.join(runtime).into_os_string()];
            self.link(&files, &object, &self.folder.join("complete.so"), &all)?;
        }
        let taken = self.inspect(&file)?;
        let size = fs::metadata(&file).map_or(0, |found| found.len());
        let name = file.file_name().unwrap_or_default().display();
        println!("{name}: {} KiB, the same with the headers of CUDA 12.6 and 13.0", size >> 10);
        Ok(Part { file, taken })
    }

    /// The part's object file, with the headers of one CUDA.
    fn compile(&self, torch: &Path, cuda: &Path) -> Result<PathBuf, String> {
        let object = self.folder.join("backend.o");
        command::run(cmd!(
            self.repo.shell,
            "g++ -std=c++20 -O2 -Wall -Wextra -Werror -fPIC -pthread -fvisibility=hidden
            -D_GLIBCXX_USE_CXX11_ABI=1 -isystem python/lib/larder/_plain_cuda -isystem {cuda}
            -isystem {torch}/include -I crates/larder-c/include -c torch/backend.cpp -o {object}"
        ))?;
        Ok(object)
    }

    fn link(
        &self,
        torch: &Path,
        object: &Path,
        out: &Path,
        more: &[OsString],
    ) -> Result<(), String> {
        let native = self.native;
        command::run(cmd!(
            self.repo.shell,
            "g++ -std=c++20 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -pthread
            -s {object} torch/older.cpp {torch}/lib/libc10_cuda.so {torch}/lib/libc10.so {native}
            {more...} -o {out}"
        ))
    }

    /// Refuses a part that brings in a library or looks for one. The functions that it takes of
    /// CUDA's runtime.
    fn inspect(&self, part: &Path) -> Result<BTreeSet<String>, String> {
        let (name, shell) = (part.display(), &self.repo.shell);
        let section = command::output(cmd!(shell, "readelf -d -W {part}"))?;
        if let Some(line) = section.lines().find(|line| line.contains("PATH)")) {
            return Err(format!("{name} has a search path of its own: {}", line.trim()));
        }
        if let Some(other) =
            needed(&section).find(|name| !LIBRARIES.split(' ').any(|one| one == *name))
        {
            return Err(format!("{name} is linked to {other}"));
        }
        let wanted = cmd!(shell, "nm --dynamic --undefined-only --format=just-symbols {part}");
        let wanted = command::output(wanted)?;
        Ok(wanted.lines().filter(|name| name.starts_with("cuda")).map(str::to_owned).collect())
    }
}

/// The libraries that a dynamic section names.
fn needed(section: &str) -> impl Iterator<Item = &str> {
    let lines = section.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| line.split_once('[')?.1.split_once(']').map(|(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_dynamic_section_are_found() {
        let text = " 0x01 (NEEDED)             Shared library: [libc10.so]\n 0x0e (SONAME) \
        Library soname: [x.so]\n";
        assert_eq!(needed(text).collect::<Vec<_>>(), ["libc10.so"]);
    }
}
