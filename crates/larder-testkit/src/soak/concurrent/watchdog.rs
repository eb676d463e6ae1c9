//! The watchdog: threads that wait for each other for ever are a failure too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// How often it looks.
const LOOK: Duration = Duration::from_millis(250);

/// Watches a number that grows as long as anybody gets on.
pub(super) struct Watchdog {
    beats: Arc<AtomicU64>,
    _leash: Sender<()>,
}

impl Watchdog {
    /// A watchdog that calls `bark` if nobody beats for so long. It goes when it is dropped.
    pub(super) fn new(patience: Duration, bark: impl FnOnce() + Send + 'static) -> Watchdog {
        let beats = Arc::new(AtomicU64::new(0));
        let (leash, pulled) = mpsc::channel();
        let watched = beats.clone();
        thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            while pulled.recv_timeout(LOOK.min(patience)) == Err(RecvTimeoutError::Timeout) {
                let now = watched.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() >= patience {
                    return bark();
                }
            }
        });
        Watchdog { beats, _leash: leash }
    }

    /// Somebody got on.
    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_barks_when_nobody_gets_on_and_not_before() {
        let (sender, heard) = mpsc::channel();
        let patience = Duration::from_millis(400);
        let watchdog = Watchdog::new(patience, move || sender.send(()).unwrap());
        let start = Instant::now();
        while start.elapsed() < 2 * patience {
            watchdog.beat();
            thread::sleep(Duration::from_millis(5));
        }
        assert!(heard.try_recv().is_err(), "somebody got on all the time");
        assert_eq!(heard.recv_timeout(20 * patience), Ok(()));
    }

    #[test]
    fn it_goes_quietly_when_the_work_is_done() {
        let (sender, heard) = mpsc::channel();
        drop(Watchdog::new(Duration::from_millis(50), move || sender.send(()).unwrap()));
        assert!(heard.recv().is_err(), "it went, and what it would have barked with too");
    }
}
