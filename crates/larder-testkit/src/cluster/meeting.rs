//! Meetings: an exchange among the ranks of one process, which is also what a hub runs for the
//! ranks of several.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_core::error::ExchangeError;

use crate::cluster::Gather;

type Said = Vec<Vec<u8>>;

/// Where all ranks meet, round by round.
#[derive(Debug)]
pub struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
    patience: Duration,
}

#[derive(Debug)]
struct State {
    /// What ranks said in the round that is under way.
    said: Vec<Option<Vec<u8>>>,
    /// What came of a round, for each rank that was in it and has not looked yet.
    answers: Vec<Option<Result<Arc<Said>, ExchangeError>>>,
    /// The first rank that left: those who leave after it do so for want of it.
    gone: Option<usize>,
}

impl Meeting {
    /// A meeting of so many ranks, who wait for each other for so long at most.
    pub fn new(ranks: usize, patience: Duration) -> Arc<Meeting> {
        let (said, answers) = (vec![None; ranks], vec![None; ranks]);
        let state = State { said, answers, gone: None };
        Arc::new(Meeting { state: Mutex::new(state), changed: Condvar::new(), patience })
    }

    /// The seat of a rank. Who drops it leaves, and the others are told.
    pub fn seat(self: &Arc<Meeting>, rank: usize) -> Seat {
        Seat { meeting: self.clone(), rank }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, rank: usize) {
        let mut state = self.lock();
        let first = *state.gone.get_or_insert(rank);
        // Whoever waits for this rank waits in vain.
        if state.said.iter().any(Option::is_some) {
            state.end_round(&Err(format!("rank {first} is gone").into()));
        }
        drop(state);
        self.changed.notify_all();
    }

    fn gather(&self, rank: usize, said: &[u8]) -> Result<Said, ExchangeError> {
        let mut state = self.lock();
        if let Some(gone) = state.gone {
            return Err(format!("rank {gone} is gone").into());
        }
        state.said[rank] = Some(said.to_vec());
        if state.said.iter().all(Option::is_some) {
            let all = state.said.iter().flatten().cloned().collect();
            state.end_round(&Ok(Arc::new(all)));
            self.changed.notify_all();
        }
        let end = Instant::now() + self.patience;
        loop {
            if let Some(answer) = state.answers[rank].take() {
                drop(state);
                return answer.map(Arc::unwrap_or_clone);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let late = state.said.iter().position(Option::is_none).unwrap_or(rank);
                let seconds = self.patience.as_secs_f64();
                state
                    .end_round(&Err(format!("rank {late} did not come within {seconds} s").into()));
                self.changed.notify_all();
                continue;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn end_round(&mut self, outcome: &Result<Arc<Said>, ExchangeError>) {
        for (said, answer) in self.said.iter_mut().zip(&mut self.answers) {
            if said.take().is_some() {
                *answer = Some(outcome.clone());
            }
        }
    }
}

/// A rank's place at a meeting.
#[derive(Debug)]
pub struct Seat {
    meeting: Arc<Meeting>,
    rank: usize,
}

impl Gather for Seat {
    fn gather(&self, said: &[u8]) -> Result<Said, ExchangeError> {
        self.meeting.gather(self.rank, said)
    }

    fn leave(&self) {
        self.meeting.leave(self.rank);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.meeting.leave(self.rank);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn all_hear_what_all_said_round_after_round() {
        let meeting = Meeting::new(4, Duration::from_secs(60));
        thread::scope(|scope| {
            for rank in 0..4 {
                let seat = meeting.seat(rank);
                scope.spawn(move || {
                    for round in 0..200_u8 {
                        let heard = seat.gather(&[rank as u8, round]).unwrap();
                        let expected: Vec<Vec<u8>> = (0..4).map(|rank| vec![rank, round]).collect();
                        assert_eq!(heard, expected);
                    }
                    // Nobody leaves before all have heard the last round.
                    let _ = seat.gather(b"bye");
                });
            }
        });
    }

    #[test]
    fn a_rank_that_leaves_or_does_not_come_is_named() {
        let meeting = Meeting::new(3, Duration::from_millis(50));
        let seats = [meeting.seat(0), meeting.seat(1), meeting.seat(2)];
        let late = seats[0].gather(b"here").unwrap_err();
        assert_eq!(late.to_string(), "rank 1 did not come within 0.05 s");
        let [first, second, third] = seats;
        let waiter = thread::spawn(move || first.gather(b"here"));
        drop(second);
        let gone = waiter.join().unwrap().unwrap_err();
        assert_eq!(gone.to_string(), "rank 1 is gone");
        assert_eq!(third.gather(b"here").unwrap_err(), gone, "the first that left");
    }
}
