//! Observed captures: what is known of running captures without asking the device about anybody's
//! stream.
//!
//! A stream belongs to whoever works on it, and a device does not bear being asked about one that
//! another thread is just beginning to capture, ceasing to capture, or destroying. So it is asked
//! about the stream that a call names, by the call, and what it says is noted here. A capture runs
//! in a scope that the thread opened which begins and ends it: where all open scopes are of one
//! thread, no other thread is capturing, and that thread may ask about every stream.

use std::collections::{BTreeSet, HashMap};
use std::thread::ThreadId;

use crate::heap::Filter;
use crate::heap::ids::BlockId;
use crate::types::{CaptureId, PoolId, StreamId};

/// All that is known of captures.
#[derive(Debug, Default)]
pub(in crate::allocator) struct Observed {
    scopes: Vec<Scope>,
    running: Vec<Running>,
    /// The streams that calls named since a scope is open.
    named: BTreeSet<StreamId>,
    /// Who named a stream last, by `record_stream` or, since a scope is open, by a malloc: it is
    /// that thread's.
    users: HashMap<StreamId, User>,
    /// Counts what is noted of users, scopes and captures, to tell what came first.
    moments: u64,
    /// Blocks that were freed by a thread in the middle of this capture, until it is over.
    held: HashMap<BlockId, CaptureId>,
    /// Streams that are destroyed, while it could not be waited for their work yet.
    gone: BTreeSet<StreamId>,
}

/// Who named a stream, and when.
#[derive(Clone, Copy, Debug)]
struct User {
    thread: ThreadId,
    at: u64,
}

/// An open scope, as far as captures go.
#[derive(Debug)]
struct Scope {
    pool: PoolId,
    thread: ThreadId,
    /// The stream that a capture inside it begins on, if the scope says so or its thread worked on
    /// that stream when it opened the scope.
    origin: Option<StreamId>,
    /// Whether the origin is its thread's own stream, about which that thread may ask.
    own_origin: bool,
    /// Whether it is a capture's scope by its filter.
    for_capture: bool,
    /// Whether nothing was seen of its thread's requests yet, so that a capture may be on in it.
    suspected: bool,
    /// When it was opened.
    since: u64,
}

impl Scope {
    /// Whether a capture may be on in it.
    fn may_capture(&self) -> bool {
        self.for_capture || self.suspected
    }
}

/// A capture that was seen, and was not seen to be over.
#[derive(Debug)]
struct Running {
    id: CaptureId,
    /// Who saw it first, or marked it.
    thread: ThreadId,
    /// When that was.
    since: u64,
    origin: Option<StreamId>,
    /// Whether it was marked, so that only its origin, the mark's end or the scope's end it.
    marked: bool,
    /// The scopes that it may run in, in the order in which they were opened: those of the thread
    /// that saw it, or all if that has none. The last to be closed ends it. Which of them took a
    /// request says nothing: a newer one, maybe of another thread, may take what is captured in an
    /// older one.
    pools: Vec<PoolId>,
    claim: Claim,
    streams: BTreeSet<StreamId>,
}

/// What speaks for a capture being its thread's. Whoever has the better claim has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// It saw it, and may work for somebody else. If nothing else tells its end, any scope in which
    /// it may have begun does: should it go on, it is seen again with its next request.
    Seen,
    /// It saw it, and has scopes of its own. If nothing else tells its end, the newest of them
    /// does.
    Scoped,
    /// It saw it where it opened a scope, or says that it began it.
    Begun,
}

impl Observed {
    /// A scope is opened. `current` is the stream that its thread works on, if that is known.
    pub(in crate::allocator) fn open(
        &mut self,
        pool: PoolId,
        thread: ThreadId,
        filter: Option<Filter>,
        current: Option<StreamId>,
    ) {
        let (origin, own_origin) = match filter {
            Some(Filter::Capture(origin)) => (Some(origin), true),
            Some(Filter::Stream(origin)) => (Some(origin), false),
            Some(Filter::Any | Filter::Thread(_)) | None => (current, true),
        };
        if let Some(Filter::Capture(named) | Filter::Stream(named)) = filter {
            self.note_there(named);
        }
        // Whoever opened a scope there before may work elsewhere by now, and asks about it no more.
        let before = |scope: &&mut Scope| scope.origin.is_some() && scope.origin == origin;
        for scope in self.scopes.iter_mut().filter(before) {
            scope.own_origin &= scope.thread == thread;
        }
        let for_capture = matches!(filter, Some(Filter::Capture(_)));
        let (suspected, since) = (!for_capture, self.moment());
        self.scopes.push(Scope { pool, thread, origin, own_origin, for_capture, suspected, since });
    }

    fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// A scope is closed, and with it the captures that began on its stream or ran in no other.
    pub(in crate::allocator) fn close(&mut self, pool: PoolId) {
        let closed = || self.scopes.iter().filter(|scope| scope.pool == pool);
        let origin = closed().find(|scope| scope.for_capture).and_then(|scope| scope.origin);
        let may_be_its = closed().any(Scope::may_capture);
        self.scopes.retain(|scope| scope.pool != pool);
        let is_told = |running: &Running| running.marked || running.origin.is_some();
        let ends = |running: &Running| {
            let is_newest = running.pools.last() == Some(&pool);
            let is_among = running.pools.contains(&pool);
            if running.claim == Claim::Seen { may_be_its && is_among } else { is_newest }
        };
        self.running.retain(|running| is_told(running) || !ends(running));
        for running in &mut self.running {
            running.pools.retain(|&other| other != pool);
        }
        let began_here = |running: &Running| origin.is_some() && running.origin == origin;
        self.running.retain(|running| !running.pools.is_empty() && !began_here(running));
        if self.scopes.is_empty() {
            self.running.clear();
            self.named.clear();
            self.held.clear();
        }
    }

    /// A scope is closed by the one thread that has any, which asked its streams: what still runs,
    /// runs in those that are left.
    pub(in crate::allocator) fn close_alone(&mut self, pool: PoolId) {
        self.scopes.retain(|scope| scope.pool != pool);
        let left: Vec<PoolId> = self.scopes.iter().map(|scope| scope.pool).collect();
        for running in &mut self.running {
            running.pools.clone_from(&left);
        }
        self.close(pool);
    }

    /// Whether no thread but this one has a scope, so that no other can be capturing.
    pub(in crate::allocator) fn is_alone(&self, thread: ThreadId) -> bool {
        self.scopes.iter().all(|scope| scope.thread == thread)
    }

    /// Whether a request has to ask about its stream even if nothing else makes it: something may
    /// be learned that others have to know.
    pub(in crate::allocator) fn is_curious(&self) -> bool {
        !self.running.is_empty() || self.scopes.iter().any(Scope::may_capture)
    }

    /// The device was asked about a stream by a thread that may ask, and said which capture it is
    /// under.
    pub(in crate::allocator) fn see(
        &mut self,
        stream: StreamId,
        capture: Option<CaptureId>,
        thread: ThreadId,
    ) {
        // Of a capture that was broken a device may not know the number; it is the one that it was.
        let known = self.of(stream);
        let capture = if capture == Some(CaptureId(0)) { known.or(capture) } else { capture };
        for running in &mut self.running {
            if Some(running.id) != capture {
                running.streams.remove(&stream);
            }
        }
        let is_over = |running: &Running| {
            let began_here = running.origin == Some(stream) && Some(running.id) != capture;
            began_here || (running.streams.is_empty() && !running.marked)
        };
        self.running.retain(|running| !is_over(running));
        let Some(id) = capture else {
            for scope in self.scopes.iter_mut().filter(|scope| scope.thread == thread) {
                scope.suspected &= scope.origin != Some(stream);
            }
            return;
        };
        let begun_here = |scope: &Scope| scope.for_capture && scope.origin == Some(stream);
        let origin = self.scopes.iter().any(begun_here).then_some(stream);
        let is_own = |scope: &Scope| scope.thread == thread && scope.own_origin;
        let began_it = self.scopes.iter().any(|at| is_own(at) && at.origin == Some(stream));
        let running = self.entry(id, thread, began_it);
        running.streams.insert(stream);
        running.origin = origin.or(running.origin);
    }

    /// The thread was seen to allocate outside of any capture: there is none in its scopes that
    /// tell no stream.
    pub(in crate::allocator) fn note_outside(&mut self, thread: ThreadId) {
        for scope in self.scopes.iter_mut().filter(|scope| scope.thread == thread) {
            scope.suspected &= scope.origin.is_some();
        }
    }

    /// Whether the thread may be capturing on a stream that nobody told of: it has a scope that
    /// tells none, and was not seen to allocate in it.
    pub(in crate::allocator) fn may_capture_unseen(&self, thread: ThreadId) -> bool {
        let mut own = self.scopes.iter().filter(|scope| scope.thread == thread);
        own.any(|scope| scope.suspected && scope.origin.is_none())
    }

    fn entry(&mut self, id: CaptureId, thread: ThreadId, began_it: bool) -> &mut Running {
        // One that is for another's stream, or was left to somebody else, is not where it captures.
        let own = self.scopes.iter().filter(|scope| scope.thread == thread && scope.own_origin);
        let own: Vec<PoolId> = own.map(|scope| scope.pool).collect();
        let claim = match own.is_empty() {
            _ if began_it => Claim::Begun,
            true => Claim::Seen,
            false => Claim::Scoped,
        };
        if let Some(at) = self.running.iter().position(|running| running.id == id) {
            let running = &mut self.running[at];
            if claim > running.claim && !running.marked {
                (running.thread, running.claim) = (thread, claim);
                if !own.is_empty() {
                    running.pools = own;
                }
            }
            return running;
        }
        let all = || self.scopes.iter().map(|scope| scope.pool).collect();
        let pools = if own.is_empty() { all() } else { own };
        let (origin, marked, streams, since) = (None, false, BTreeSet::new(), self.moment());
        let running = Running { id, thread, since, origin, marked, pools, claim, streams };
        self.running.push(running);
        self.running.last_mut().expect("what was just put there")
    }

    /// A thread says that it began this capture on the stream.
    pub(in crate::allocator) fn mark(&mut self, stream: StreamId, id: CaptureId, thread: ThreadId) {
        let running = self.entry(id, thread, true);
        (running.origin, running.thread, running.marked) = (Some(stream), thread, true);
        running.streams.insert(stream);
    }

    /// The capture that was marked on the stream is over.
    pub(in crate::allocator) fn unmark(&mut self, stream: StreamId) {
        self.running.retain(|running| !(running.marked && running.origin == Some(stream)));
    }

    /// The capture that the stream was last seen under.
    pub(in crate::allocator) fn of(&self, stream: StreamId) -> Option<CaptureId> {
        let mut running = self.running.iter();
        running.find(|running| running.streams.contains(&stream)).map(|running| running.id)
    }

    /// The capture that began on the stream, as far as it was seen.
    pub(in crate::allocator) fn begun_on(&self, stream: StreamId) -> Option<CaptureId> {
        let mut running = self.running.iter();
        running.find(|running| running.origin == Some(stream)).map(|running| running.id)
    }

    /// The origins of captures' scopes, each with whether this thread opened the scope, and nobody
    /// else one there since.
    pub(in crate::allocator) fn origins(&self, thread: ThreadId) -> Vec<(StreamId, bool)> {
        let scopes = self.scopes.iter().filter(|scope| scope.for_capture);
        let is_own = |scope: &Scope| scope.thread == thread && scope.own_origin;
        scopes.filter_map(|scope| Some((scope.origin?, is_own(scope)))).collect()
    }

    /// Where captures may have begun in scopes of this thread that are not captures' by their
    /// filters.
    pub(in crate::allocator) fn own_suspects(&self, thread: ThreadId) -> Vec<StreamId> {
        let own = |scope: &&Scope| scope.thread == thread && scope.suspected && scope.own_origin;
        self.scopes.iter().filter(own).filter_map(|scope| scope.origin).collect()
    }

    /// The streams about which the one thread that has scopes has to ask, to know whether it is
    /// capturing: those that its scopes name, and those that it named since.
    pub(in crate::allocator) fn worth_asking(&self) -> BTreeSet<StreamId> {
        let origins = self.scopes.iter().filter_map(|scope| scope.origin);
        origins.chain(self.named.iter().copied()).chain(self.seen()).collect()
    }

    /// The streams that were seen under a capture.
    pub(in crate::allocator) fn seen(&self) -> BTreeSet<StreamId> {
        self.running.iter().flat_map(|running| running.streams.iter().copied()).collect()
    }

    /// Somebody names the stream who has it: if one of that name is gone, this is another.
    pub(in crate::allocator) fn note_there(&mut self, stream: StreamId) {
        self.gone.remove(&stream);
    }

    /// Whether any capture was seen that may still run.
    pub(in crate::allocator) fn has_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether this capture may still run.
    pub(in crate::allocator) fn is_running(&self, id: CaptureId) -> bool {
        self.running.iter().any(|running| running.id == id)
    }

    /// The capture that this thread is in by what it did before: it marked it, or saw it in a scope
    /// of its own.
    pub(in crate::allocator) fn capture_by(&self, thread: ThreadId) -> Option<CaptureId> {
        let own = |pool: &PoolId| {
            self.scopes.iter().any(|scope| scope.pool == *pool && scope.thread == thread)
        };
        let mut running = self.running.iter().filter(|running| running.thread == thread);
        running
            .find(|running| running.marked || running.pools.iter().any(own))
            .map(|found| found.id)
    }

    /// Whether it is this thread that ends the capture, so that nobody else does while it asks
    /// about the capture's streams. Who saw one first, beside others who may be capturing, may work
    /// for one of them.
    pub(in crate::allocator) fn is_ended_by(&self, id: CaptureId, thread: ThreadId) -> bool {
        let Some(running) = self.running.iter().find(|running| running.id == id) else {
            return false;
        };
        let begun_in = |scope: &&Scope| {
            scope.for_capture && scope.own_origin && scope.origin == running.origin
        };
        let begun_in = running.origin.and_then(|_| self.scopes.iter().find(begun_in));
        let begun_by = begun_in.map(|scope| scope.thread);
        match begun_by.or(running.marked.then_some(running.thread)) {
            Some(ender) => ender == thread,
            None => !self.may_others_capture(thread),
        }
    }

    /// Whether another thread may be capturing: it has a capture's scope, or one in which it was
    /// not seen to do anything else.
    pub(in crate::allocator) fn may_others_capture(&self, thread: ThreadId) -> bool {
        let mut others = self.scopes.iter().filter(|scope| scope.thread != thread);
        others.any(Scope::may_capture)
    }

    /// Whether the stream is to be taken for one under a capture: of another thread, or one that
    /// this thread was seen in.
    pub(in crate::allocator) fn is_suspect(&self, stream: StreamId, thread: ThreadId) -> bool {
        let mut others = self.scopes.iter().filter(|scope| scope.thread != thread);
        let captures = |user: ThreadId| {
            let has_scope = |scope: &Scope| scope.thread == user && scope.may_capture();
            let is_in = |running: &Running| {
                running.thread == user && (running.marked || running.claim > Claim::Seen)
            };
            self.running.iter().any(is_in) || (user != thread && self.scopes.iter().any(has_scope))
        };
        self.of(stream).is_some()
            || others.any(|scope| scope.origin == Some(stream) && scope.may_capture())
            || self.users.get(&stream).is_some_and(|user| captures(user.thread))
    }

    /// Whether the stream may be under a capture, so that no call may be made about it: one that is
    /// suspect; and, while another thread is known to capture, any that this thread did not name
    /// since, because it may have been left to the capture.
    pub(in crate::allocator) fn may_be_captured(&self, stream: StreamId, thread: ThreadId) -> bool {
        let scopes = self.scopes.iter();
        let scopes = scopes.filter(|scope| scope.thread != thread && scope.for_capture);
        let is_known =
            |at: &&Running| at.thread != thread && (at.marked || at.claim == Claim::Begun);
        let running = self.running.iter().filter(is_known).map(|running| running.since);
        let user = self.users.get(&stream).filter(|user| user.thread == thread);
        let is_own = |since| user.is_some_and(|user| user.at > since);
        let mut begun = scopes.map(|scope| scope.since).chain(running);
        begun.any(|since| !is_own(since)) || self.is_suspect(stream, thread)
    }

    /// The thread works on this stream.
    pub(in crate::allocator) fn note_user(&mut self, stream: StreamId, thread: ThreadId) {
        let user = User { thread, at: self.moment() };
        self.users.insert(stream, user);
        self.note_there(stream);
        if !self.scopes.is_empty() {
            self.named.insert(stream);
        }
    }

    /// The block's free was put off until this capture is over, or for another reason.
    pub(in crate::allocator) fn hold(&mut self, block: BlockId, capture: Option<CaptureId>) {
        match capture {
            Some(capture) => _ = self.held.insert(block, capture),
            None => _ = self.held.remove(&block),
        }
    }

    /// Whether any block's free was put off for a capture as such.
    pub(in crate::allocator) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether the capture that the block's free was put off for may still run.
    pub(in crate::allocator) fn is_held(&self, block: BlockId) -> bool {
        self.held.get(&block).is_some_and(|&capture| self.is_running(capture))
    }

    /// The thread says that the stream is destroyed: nothing is asked about it from here on, nor
    /// anything else. That it is gone is over when it is forgotten, or when somebody names it: then
    /// it is another one. It may be one already, and what other threads do there is left as it is.
    pub(in crate::allocator) fn note_gone(&mut self, stream: StreamId, thread: ThreadId) {
        self.drop_origins(stream, |other| other == thread);
        self.gone.insert(stream);
    }

    /// No scope of these threads is for the stream, and no capture of theirs began there.
    fn drop_origins(&mut self, stream: StreamId, is_theirs: impl Fn(ThreadId) -> bool) {
        let begun_here = |scope: &&mut Scope| scope.origin == Some(stream);
        for scope in self.scopes.iter_mut().filter(begun_here) {
            scope.origin = scope.origin.filter(|_| !is_theirs(scope.thread));
        }
        for running in self.running.iter_mut().filter(|running| is_theirs(running.thread)) {
            running.streams.remove(&stream);
            if running.origin == Some(stream) {
                (running.origin, running.marked) = (None, false);
            }
        }
        self.running.retain(|running| running.marked || !running.streams.is_empty());
    }

    /// Whether any of the streams is destroyed.
    pub(in crate::allocator) fn is_any_gone(&self, streams: &[StreamId]) -> bool {
        !self.gone.is_empty() && streams.iter().any(|stream| self.gone.contains(stream))
    }

    /// The stream is gone; a later one of the same name has nothing to do with it. A capture that
    /// began on it is over, unless others were seen in it: then it is over with the last of these.
    pub(in crate::allocator) fn forget(&mut self, stream: StreamId) {
        self.users.remove(&stream);
        self.named.remove(&stream);
        self.gone.remove(&stream);
        self.drop_origins(stream, |_| true);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const POOL: PoolId = PoolId(1, 0);
    const OTHER: PoolId = PoolId(0, 1);
    const ONE: CaptureId = CaptureId(7);
    const MAIN: StreamId = StreamId(3);
    const SIDE: StreamId = StreamId(4);
    const FAR: StreamId = StreamId(5);

    /// Two threads: this one, and one that is over.
    fn threads() -> [ThreadId; 2] {
        [thread::current().id(), thread::spawn(|| thread::current().id()).join().unwrap()]
    }

    #[test]
    fn a_capture_is_over_when_its_origin_is_seen_elsewhere_or_its_scope_is_closed() {
        let [me, other] = threads();
        let mut observed = Observed::default();
        observed.open(OTHER, other, Some(Filter::Any), None);
        observed.open(POOL, me, Some(Filter::Capture(MAIN)), None);
        for end in 0..2 {
            observed.see(MAIN, Some(ONE), me);
            observed.see(SIDE, Some(ONE), me);
            assert_eq!((observed.of(SIDE), observed.begun_on(MAIN)), (Some(ONE), Some(ONE)));
            assert!(observed.is_suspect(SIDE, other) && !observed.is_suspect(FAR, other));
            if end == 0 {
                observed.see(MAIN, None, me);
            } else {
                observed.close(POOL);
            }
            assert_eq!((observed.of(SIDE), observed.has_running()), (None, false));
        }
    }

    /// A newer scope of another thread takes what is captured in an older one, and is closed before
    /// it.
    #[test]
    fn a_capture_goes_on_when_somebody_elses_scope_is_closed() {
        let [me, other] = threads();
        let mut observed = Observed::default();
        observed.open(POOL, me, Some(Filter::Capture(MAIN)), None);
        observed.open(OTHER, other, Some(Filter::Any), None);
        observed.see(MAIN, Some(ONE), me);
        observed.close(OTHER);
        assert_eq!((observed.of(MAIN), observed.has_running()), (Some(ONE), true));
        observed.close(POOL);
        assert!(!observed.has_running());
    }

    #[test]
    fn a_broken_capture_whose_number_nobody_knows_is_the_one_that_it_was() {
        let [me, _] = threads();
        let mut observed = Observed::default();
        observed.open(POOL, me, None, Some(MAIN));
        observed.see(MAIN, Some(ONE), me);
        observed.see(MAIN, Some(CaptureId(0)), me);
        assert_eq!(observed.of(MAIN), Some(ONE));
        observed.see(SIDE, Some(CaptureId(0)), me);
        assert_eq!(observed.of(SIDE), Some(CaptureId(0)), "captured in any case");
    }

    #[test]
    fn a_scope_may_hold_a_capture_until_its_thread_is_seen_without_one() {
        let [me, other] = threads();
        let mut observed = Observed::default();
        observed.open(POOL, other, None, Some(MAIN));
        assert!(observed.may_others_capture(me) && observed.is_suspect(MAIN, me));
        observed.see(SIDE, None, other);
        assert!(observed.may_others_capture(me), "it works on another stream besides");
        assert_eq!(observed.own_suspects(other), [MAIN]);
        observed.see(MAIN, None, other);
        assert!(!observed.may_others_capture(me) && !observed.is_suspect(MAIN, me));
        assert!(!observed.is_alone(me) && observed.is_alone(other));
    }

    #[test]
    fn a_stream_is_its_last_users_and_suspect_while_that_one_may_be_capturing() {
        let [me, other] = threads();
        let mut observed = Observed::default();
        observed.note_user(FAR, other);
        assert!(!observed.is_suspect(FAR, me));
        observed.open(POOL, other, Some(Filter::Capture(MAIN)), None);
        assert!(observed.is_suspect(FAR, me) && !observed.is_suspect(FAR, other));
        assert!(!observed.is_suspect(SIDE, me));
        assert!(observed.may_be_captured(SIDE, me), "it may have joined");
        observed.note_user(FAR, me);
        assert!(!observed.is_suspect(FAR, me));
        assert!(!observed.may_be_captured(FAR, me));
        observed.mark(MAIN, ONE, other);
        assert!(observed.may_be_captured(FAR, me), "it may have been left to the other since");
    }
}
