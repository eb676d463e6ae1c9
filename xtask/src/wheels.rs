//! Files out of wheels of the Python package index, kept in a cache.

use std::fs;
use std::path::PathBuf;

use xshell::cmd;

use crate::command::{output, run};
use crate::file;
use crate::python::QUIET;
use crate::repository::Repository;

/// Takes out of each wheel in a folder what lies under the given prefixes.
const UNPACK: &str = "
import pathlib, sys, zipfile
wheels, out, *prefixes = sys.argv[1:]
for wheel in pathlib.Path(wheels).glob('*.whl'):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(tuple(prefixes))]
        archive.extractall(out, names)
";

/// Some wheels, what is wanted of them, and where it is kept.
pub(crate) struct Wheels<'a> {
    /// What they are together, for sentences.
    pub(crate) what: &'a str,
    /// Names with versions: what is fetched must not change under us.
    pub(crate) pins: &'a [&'a str],
    /// How the names of the wanted files begin.
    pub(crate) wanted: &'a [&'a str],
    /// Where the wanted files are kept.
    pub(crate) files: PathBuf,
}

impl Wheels<'_> {
    /// Fetches what is not there. The wheels are for one Python and one system, whichever Python
    /// fetches them. They are large and little of them is needed, so they do not stay.
    pub(crate) fn fetch(&self, repo: &Repository) -> Result<(), String> {
        let Self { what, pins, wanted, ref files } = *self;
        let made_of = [pins, wanted].concat().join("\n");
        file::unless_complete(&files.join("complete"), &made_of, || {
            let wheels = files.with_extension("wheels");
            file::create(&wheels)?;
            let pinned = pins.join(", ");
            eprintln!("==> fetching {pinned} (once; a wheel of PyTorch has about 530 MB)");
            let pip = cmd!(
                repo.shell,
                "python3 -m pip download {QUIET...} --no-deps --only-binary=:all:
                --implementation=cp --python-version=3.11 --abi=cp311 --abi=none
                --platform=manylinux_2_28_x86_64 --platform=manylinux2014_x86_64
                --platform=manylinux_2_17_x86_64 --dest {wheels} {pins...}"
            );
            output(pip).map_err(|why| {
                format!("{what} is not in the cache under target/, and pip cannot fetch it: {why}")
            })?;
            run(cmd!(repo.shell, "python3 -c {UNPACK} {wheels} {files} {wanted...}"))?;
            // What is left of the wheels costs room and nothing else.
            let _ = fs::remove_dir_all(&wheels);
            Ok(())
        })
    }
}
