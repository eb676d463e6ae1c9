//! Crew: many replays at once, on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Does the work on each of the items, as many at a time as there are cores; what came of each, in
/// the order of the items. `done` is told, on the calling thread, whenever one more is finished.
pub(crate) fn each<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
    mut done: impl FnMut(),
) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let (sender, finished) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..cores.min(items.len()) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    if sender.send((index, work(item))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (index, result) in finished {
            results[index] = Some(result);
            done();
        }
    });
    // A worker that panicked has ended the scope, and this function with it.
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items_and_each_is_told_of() {
        let items: Vec<u64> = (0..100).collect();
        let mut finished = 0;
        let squares = each(&items, |item| item * item, || finished += 1);
        assert_eq!(squares, items.iter().map(|item| item * item).collect::<Vec<_>>());
        assert_eq!(finished, 100);
        assert!(each(&[] as &[u64], |_| 0, || ()).is_empty());
    }
}
