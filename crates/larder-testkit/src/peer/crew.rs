//! Work that is done on all processors, each worker with a folder of its own.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Does each job, in no particular order. The first that cannot be done ends all, but for those in
/// hand.
pub(crate) fn each<T: Sync>(
    jobs: &[T],
    folder: &Path,
    work: impl Fn(&T, &Path) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let take = |number: usize| {
        let scratch = folder.join(format!("worker-{number}"));
        create(&scratch)?;
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(job, &scratch).inspect_err(|_| next.store(jobs.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let take = &take;
        let threads: Vec<_> =
            (0..workers).map(|number| scope.spawn(move || take(number))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err("a worker panicked".to_owned()))
        })
    })
}

/// Makes a folder and those that it lies in, unless they are there.
pub(super) fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}
