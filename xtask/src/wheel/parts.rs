//! The C++ part for each PyTorch, built beforehand for those who have no compiler.
//!
//! It is compiled by g++, as PyTorch is: values that are one in a whole process are so with GNU's
//! unique symbols alone, and PyTorch's settings are such a value. What g++ takes from newer
//! libraries than the oldest system has is in `torch/older.cpp`; auditwheel judges whether that is
//! all.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

use crate::command;
use crate::file;
use crate::peer::Peer;
use crate::repository::Repository;
use crate::torch::Torch;
use crate::wheels::Wheels;

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
const LIBRARIES: [&str; 8] = [
    "libc10_cuda.so",
    "libc10.so",
    "liblarder.so",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libc.so.6",
    "libm.so.6",
    "ld-linux-x86-64.so.2",
];

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
        let (part, native, minor) = (&self.folder, self.native, torch.minor);
        command::run(cmd!(
            self.repo.shell,
            "g++ -std=c++20 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -pthread
            -s {object} torch/older.cpp {files}/lib/libc10_cuda.so {files}/lib/libc10.so {native}
            -o {part}/torch-{minor}.so"
        ))?;
        let file = self.folder.join(format!("torch-{minor}.so"));
        let taken = self.inspect(&files.join("lib"), &file, &cuda)?;
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

    /// Refuses a part that wants what a process with PyTorch might not have. The functions that it
    /// takes of CUDA's runtime.
    fn inspect(&self, lib: &Path, part: &Path, cuda: &Path) -> Result<BTreeSet<String>, String> {
        let (name, shell) = (part.display(), &self.repo.shell);
        let words = command::output(cmd!(shell, "readelf -d -W {part}"))?;
        if let Some(line) = words.lines().find(|line| line.contains("PATH)")) {
            return Err(format!("{name} has a search path of its own: {}", line.trim()));
        }
        if let Some(other) = needed(&words).find(|library| !LIBRARIES.contains(library)) {
            return Err(format!("{name} is linked to {other}"));
        }
        let wanted = Symbols::of(shell, part)?.wanted;
        let mut found = BTreeSet::new();
        for library in [self.native.to_owned(), lib.join("libc10.so"), lib.join("libc10_cuda.so")] {
            found.extend(Symbols::of(shell, &library)?.defined);
        }
        let left: BTreeSet<String> = wanted.difference(&found).cloned().collect();
        for (_, runtime) in CUDAS {
            let runtime = cuda.join(runtime);
            let has = Symbols::of(shell, &runtime)?.defined;
            if let Some(missing) = left.difference(&has).next() {
                return Err(format!("{name} wants {missing}, which {} has not", runtime.display()));
            }
        }
        Ok(left)
    }
}

/// The symbols of a library, without those of the system's libraries, which have versions.
#[derive(Debug, Default, PartialEq, Eq)]
struct Symbols {
    defined: BTreeSet<String>,
    wanted: BTreeSet<String>,
}

impl Symbols {
    fn of(shell: &Shell, library: &Path) -> Result<Self, String> {
        Ok(Self::read(&command::output(cmd!(shell, "readelf --dyn-syms -W {library}"))?))
    }

    fn read(text: &str) -> Self {
        let mut symbols = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, _, _, _, binding, _, place, name, ..] = words[..] else { continue };
            let (name, version) = name.split_once('@').unwrap_or((name, ""));
            match place {
                "UND" if binding == "GLOBAL" && version.is_empty() => {
                    symbols.wanted.insert(name.to_owned());
                }
                "UND" | "Ndx" => {}
                _ => {
                    symbols.defined.insert(name.to_owned());
                }
            }
        }
        symbols
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
    fn symbols_with_versions_are_the_systems() {
        let text = "   Num:    Value          Size Type    Bind   Vis      Ndx Name\n\
             3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cudaFree\n\
             4: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND free@GLIBC_2.2.5 (2)\n\
             5: 0000000000000000     0 NOTYPE  WEAK   DEFAULT  UND __gmon_start__\n\
             6: 000000000001b3f0    12 FUNC    GLOBAL DEFAULT   12 larder_torch_version\n\
             7: 000000000001b3f0    12 FUNC    GLOBAL DEFAULT   12 cudaMalloc@@libcudart.so.13\n";
        let symbols = Symbols::read(text);
        assert_eq!(symbols.wanted.iter().collect::<Vec<_>>(), ["cudaFree"]);
        let defined = ["cudaMalloc", "larder_torch_version"];
        assert_eq!(symbols.defined.iter().collect::<Vec<_>>(), defined);
    }

    #[test]
    fn the_libraries_of_a_dynamic_section_are_found() {
        let text = " 0x01 (NEEDED)             Shared library: [libc10.so]\n 0x0e (SONAME) \
        Library soname: [x.so]\n";
        assert_eq!(needed(text).collect::<Vec<_>>(), ["libc10.so"]);
    }
}
