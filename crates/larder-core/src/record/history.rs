//! History: what is remembered of each record, and with which context.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::error::Unsound;
use crate::record::caught;
use crate::record::context::Context;
use crate::record::event::{Action, Actions, Event, Level};
use crate::record::keep::{Keep, KeptId};
use crate::record::note::Note;
use crate::record::ring::{Entry, Ring};
use crate::types::{DeviceIndex, PoolId, StreamId};

/// Is told of every event, under the allocator's lock, whether or not the history remembers it. It
/// must not call the allocator, and it should be quick.
pub type Tracker = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// What is remembered, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wishes {
    pub(crate) level: Level,
    pub(crate) max_entries: usize,
    pub(crate) skip: Actions,
}

/// One entry of a history, with everything that it names.
#[derive(Clone)]
pub struct TraceEntry {
    /// What happened.
    pub action: Action,
    /// The first address; of an out-of-memory entry, the free bytes of the device instead.
    pub addr: u64,
    /// How many bytes: of a block, as many as the program asked for; of a snapshot, the bytes in
    /// active blocks.
    pub size_bytes: u64,
    /// The stream.
    pub stream: StreamId,
    /// The private pool, or none.
    pub pool: PoolId,
    /// When, by the clock of the history.
    pub time_ns: u64,
    /// What the context hook returned, where the level asks for it.
    pub context: Option<Arc<dyn Context>>,
    /// What was being compiled, if anything was.
    pub compile_context: Option<Arc<str>>,
    /// What the program had set as its remark; of an annotation, what it said about the block.
    pub user_metadata: Arc<str>,
    /// What the allocator says of it: which unusual call it was part of; mostly nothing.
    pub internal_metadata: Arc<str>,
}

impl fmt::Debug for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceEntry { action, addr, size_bytes, stream, pool, .. } = self;
        write!(f, "{action} {addr:#x} {size_bytes} {stream} {pool}")
    }
}

/// Whether something begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It begins.
    Start,
    /// It ends.
    End,
}

/// A part of the program, by name, that begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// What it is called.
    pub name: Arc<str>,
    /// Whether it begins or ends.
    pub stage: Stage,
    /// When, by the clock of the history.
    pub time_ns: u64,
}

/// The call that is under way: when it came, and what its caller says about it.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    time_ns: u64,
    context: Option<KeptId>,
    note: Option<KeptId>,
}

/// What the heap states of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fact {
    pub(crate) action: Action,
    pub(crate) addr: u64,
    pub(crate) size_bytes: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolId,
}

/// What a context is the context of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// The block at this address: who allocated it.
    Block(u64),
    /// The segment whose context is found at the block at this address: who made it grow.
    Segment(u64),
}

/// Everything that is remembered of one device.
#[derive(Clone)]
pub(crate) struct History {
    device: DeviceIndex,
    wishes: Option<Wishes>,
    ring: Ring,
    contexts: Keep<dyn Context>,
    notes: Keep<Note>,
    /// The note that came last, which mostly comes again.
    recent_note: Option<(Arc<Note>, KeptId)>,
    /// Every pool that an entry may name; the first is no private pool.
    pools: Vec<PoolId>,
    owners: HashMap<Owner, KeptId>,
    trackers: Vec<Tracker>,
    annotations: VecDeque<Annotation>,
    scene: SceneSlot,
    /// The scenes of calls that dropped the lock in their middle, by the numbers of their tickets.
    away: Away,
    tickets: u64,
}

/// A scene holds uses, so a copy of a history begins with none.
#[derive(Debug, Default)]
struct SceneSlot(Scene);

/// The same holds for those that are away.
#[derive(Debug, Default)]
struct Away(BTreeMap<u64, Scene>);

impl Clone for Away {
    fn clone(&self) -> Away {
        Away::default()
    }
}

/// What was said about a call before something was added to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsaid(Option<KeptId>);

/// By this a call gets its scene back.
#[derive(Debug)]
pub(crate) struct Ticket(u64);

impl Clone for SceneSlot {
    fn clone(&self) -> SceneSlot {
        SceneSlot::default()
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History of {} entries, {:?}", self.ring.len(), self.wishes)
    }
}

impl History {
    pub(crate) fn new(device: DeviceIndex) -> History {
        History {
            device,
            wishes: None,
            ring: Ring::new(1),
            contexts: Keep::default(),
            notes: Keep::default(),
            recent_note: None,
            pools: vec![PoolId::NONE],
            owners: HashMap::new(),
            trackers: Vec::new(),
            annotations: VecDeque::new(),
            scene: SceneSlot::default(),
            away: Away::default(),
            tickets: 0,
        }
    }

    /// Whether anything has to be told: entries are remembered, somebody tracks, or a block still
    /// names a context that its free must let go of.
    pub(crate) fn is_needed(&self) -> bool {
        self.wishes.is_some() || !self.trackers.is_empty() || !self.owners.is_empty()
    }

    /// Whether nothing but entries is asked for: no contexts, and no trackers.
    pub(crate) fn is_simple(&self) -> bool {
        self.level() == Level::Never && self.trackers.is_empty() && self.owners.is_empty()
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.wishes.is_some()
    }

    pub(crate) fn level(&self) -> Level {
        self.wishes.map_or(Level::Never, |wishes| wishes.level)
    }

    /// Remembers as wished from now on, or nothing. What was remembered is forgotten if nothing is
    /// to be remembered, or if `clear` says so; annotations are, in any case.
    pub(crate) fn set(&mut self, wishes: Option<Wishes>, clear: bool) {
        self.annotations.clear();
        self.wishes = wishes;
        let max = wishes.map_or(1, |wishes| wishes.max_entries);
        if wishes.is_none() || clear {
            let ring = std::mem::replace(&mut self.ring, Ring::new(max));
            for entry in ring.iter() {
                self.let_go(entry.context, entry.note);
            }
        } else {
            self.ring.set_max(max);
        }
    }

    pub(crate) fn track(&mut self, tracker: Tracker) {
        self.trackers.push(tracker);
    }

    /// A call begins of which there is nothing to say but its time.
    #[inline]
    pub(crate) fn begin_simply(&mut self, time_ns: u64) {
        if self.scene.0.context.is_some() || self.scene.0.note.is_some() {
            self.resume(Scene::default());
        }
        self.scene.0.time_ns = time_ns;
    }

    /// A call begins. What the last one left is let go of.
    pub(crate) fn begin(
        &mut self,
        time_ns: u64,
        context: Option<Arc<dyn Context>>,
        note: Option<Arc<Note>>,
    ) {
        let context = context.map(|context| {
            // A context that cannot be compared is like no other.
            let fingerprint = caught::catch(|| context.fingerprint()).unwrap_or(0);
            let is_same = |one: &dyn Context, other: &dyn Context| {
                caught::catch(|| one.is_same(other)).unwrap_or(false)
            };
            self.contexts.add(context, fingerprint, is_same)
        });
        let note = note.map(|note| self.note(note));
        self.resume(Scene { time_ns, context, note });
    }

    fn note(&mut self, note: Arc<Note>) -> KeptId {
        if let Some((recent, id)) = &self.recent_note
            && Arc::ptr_eq(recent, &note)
        {
            self.notes.add_use(*id);
            return *id;
        }
        let mut hasher = DefaultHasher::new();
        note.hash(&mut hasher);
        let id = self.notes.add(note.clone(), hasher.finish(), |one, other| one == other);
        self.notes.add_use(id);
        if let Some((_, old)) = self.recent_note.replace((note, id)) {
            self.notes.drop_use(old);
        }
        id
    }

    /// Something is added to what is said about the call under way, until `unsay` gets back what
    /// was said before.
    pub(crate) fn say(&mut self, add: impl FnOnce(&mut Note)) -> Unsaid {
        let said = self.scene.0.note;
        let mut note = said.map_or_else(Note::default, |note| Note::clone(self.notes.get(note)));
        add(&mut note);
        self.scene.0.note = Some(self.note(Arc::new(note)));
        Unsaid(said)
    }

    /// What was said before is said again.
    pub(crate) fn unsay(&mut self, before: Unsaid) {
        let said = std::mem::replace(&mut self.scene.0.note, before.0);
        self.let_go(None, said);
    }

    /// An event of the call under way, with something added to what is said about it.
    pub(crate) fn tell_with(&mut self, fact: &Fact, add: impl FnOnce(&mut Note)) {
        let before = self.say(add);
        self.tell(fact, None);
        self.unsay(before);
    }

    /// The scene leaves the stage for a moment.
    pub(crate) fn suspend(&mut self) -> Scene {
        std::mem::take(&mut self.scene.0)
    }

    /// The scene leaves the stage, because the lock is about to be dropped in the middle of a call.
    pub(crate) fn send_away(&mut self) -> Ticket {
        self.tickets += 1;
        let scene = self.suspend();
        self.away.0.insert(self.tickets, scene);
        Ticket(self.tickets)
    }

    /// The scene comes back. If nothing is told any more, as the history was turned off meanwhile,
    /// it is let go of; if contexts were, its context is.
    pub(crate) fn bring_back(&mut self, ticket: &Ticket) {
        let mut scene = self.away.0.remove(&ticket.0).unwrap_or_default();
        if self.level() == Level::Never {
            self.let_go(scene.context.take(), None);
        }
        self.resume(scene);
        if !self.is_needed() {
            self.resume(Scene::default());
        }
    }

    /// Another scene takes the place of this one.
    #[inline]
    pub(crate) fn resume(&mut self, scene: Scene) {
        let old = std::mem::replace(&mut self.scene.0, scene);
        self.let_go(old.context, old.note);
    }

    /// Time went on within a call.
    pub(crate) fn set_time(&mut self, time_ns: u64) {
        self.scene.0.time_ns = time_ns;
    }

    /// An event. Its context is the caller's, or, where the caller gave none, that of `owner`.
    // Always inlined: a fact that is told in place is never put together in memory.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn tell(&mut self, fact: &Fact, owner: Option<Owner>) {
        let level = self.level();
        let context = if level >= Level::Alloc {
            self.scene.0.context.or_else(|| owner.and_then(|owner| self.context_of(owner)))
        } else {
            None
        };
        if !self.trackers.is_empty() {
            self.tell_trackers(fact, context);
        }
        let Some(wishes) = &self.wishes else { return };
        if wishes.skip.has(fact.action) {
            return;
        }
        let pool = if fact.pool == PoolId::NONE { 0 } else { self.pool_number(fact.pool) };
        self.remember(fact, pool, context);
    }

    /// An event, where [`History::is_simple`] holds: there is no context, and nobody but the ring
    /// to be told.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn tell_simply(&mut self, fact: &Fact) {
        if self.wishes.is_none_or(|wishes| wishes.skip.has(fact.action)) {
            return;
        }
        let pool = if fact.pool == PoolId::NONE { 0 } else { self.pool_number(fact.pool) };
        self.remember(fact, pool, None);
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn remember(&mut self, fact: &Fact, pool: u32, context: Option<KeptId>) {
        let Scene { time_ns, note, .. } = self.scene.0;
        let &Fact { action, addr, size_bytes, stream, .. } = fact;
        let entry = Entry { addr, size_bytes, stream, time_ns, context, note, pool, action };
        if let Some(context) = context {
            self.contexts.add_use(context);
        }
        if let Some(note) = note {
            self.notes.add_use(note);
        }
        let (old_context, old_note) = self.ring.push(entry);
        self.let_go(old_context, old_note);
    }

    /// An event that nobody's context belongs to; the notes are the caller's all the same.
    pub(crate) fn tell_without_context(&mut self, fact: &Fact, scene: &Scene) {
        let (time_ns, note) = (scene.time_ns, scene.note);
        if let Some(note) = note {
            self.notes.add_use(note);
        }
        self.resume(Scene { time_ns, context: None, note });
        self.tell(fact, None);
    }

    /// An event that is for the trackers alone.
    pub(crate) fn tell_trackers(&self, fact: &Fact, context: Option<KeptId>) {
        let note = self.scene.0.note.map(|note| self.notes.get(note));
        let event = Event {
            action: fact.action,
            device: self.device,
            addr: fact.addr,
            size_bytes: fact.size_bytes,
            stream: fact.stream,
            pool: fact.pool,
            time_ns: self.scene.0.time_ns,
            context: context.map(|context| &**self.contexts.get(context)),
            compile_context: note.and_then(|note| note.compile_context.as_deref()),
            user_metadata: note.map_or("", |note| &note.user_metadata),
            internal_metadata: note.map_or("", |note| &note.internal_metadata),
        };
        self.trackers.iter().for_each(|tracker| tracker(&event));
    }

    fn pool_number(&mut self, pool: PoolId) -> u32 {
        let known = self.pools.iter().rposition(|&known| known == pool);
        let at = known.unwrap_or_else(|| {
            self.pools.push(pool);
            self.pools.len() - 1
        });
        at as u32
    }

    #[inline]
    fn let_go(&mut self, context: Option<KeptId>, note: Option<KeptId>) {
        if let Some(context) = context {
            self.contexts.drop_use(context);
        }
        if let Some(note) = note {
            self.notes.drop_use(note);
        }
    }

    /// Whether no block and no segment names a context.
    #[inline]
    pub(crate) fn has_no_owners(&self) -> bool {
        self.owners.is_empty()
    }

    /// Puts the context of the call under way aside, unless contexts are gathered for frees too.
    pub(crate) fn set_context_aside(&mut self) -> Option<KeptId> {
        if self.level() < Level::All { self.scene.0.context.take() } else { None }
    }

    /// A context that was put aside comes back.
    pub(crate) fn take_context_back(&mut self, context: Option<KeptId>) {
        if context.is_some() {
            self.scene.0.context = context;
        }
    }

    /// Whether the call that is under way has a context.
    #[inline]
    pub(crate) fn has_context(&self) -> bool {
        self.scene.0.context.is_some()
    }

    /// The context of the call under way becomes that of `owner`; without one, it has none.
    pub(crate) fn own(&mut self, owner: Owner) {
        self.disown(owner);
        if let Some(context) = self.scene.0.context {
            self.contexts.add_use(context);
            self.owners.insert(owner, context);
        }
    }

    /// The owner is gone, and lets go of its context.
    pub(crate) fn disown(&mut self, owner: Owner) {
        if let Some(context) = self.owners.remove(&owner) {
            self.contexts.drop_use(context);
        }
    }

    /// Segments let go of their contexts; blocks keep theirs.
    pub(crate) fn disown_segments(&mut self) {
        let (owners, contexts) = (&mut self.owners, &mut self.contexts);
        owners.retain(|owner, context| {
            let stays = matches!(owner, Owner::Block(_));
            if !stays {
                contexts.drop_use(*context);
            }
            stays
        });
    }

    /// What was one owner's is another's from now on, be it a context or none.
    pub(crate) fn hand_over(&mut self, from: Owner, to: Owner) {
        self.disown(to);
        if let Some(context) = self.owners.remove(&from) {
            self.owners.insert(to, context);
        }
    }

    pub(crate) fn context_of(&self, owner: Owner) -> Option<KeptId> {
        self.owners.get(&owner).copied()
    }

    /// The context of an owner, to be kept by somebody else.
    pub(crate) fn share_context(&self, owner: Owner) -> Option<Arc<dyn Context>> {
        self.context_of(owner).map(|context| self.contexts.get(context).clone())
    }

    /// The context of the call under way, to be kept by somebody else.
    pub(crate) fn share_own_context(&self) -> Option<Arc<dyn Context>> {
        self.scene.0.context.map(|context| self.contexts.get(context).clone())
    }

    pub(crate) fn annotate(&mut self, name: &str, stage: Stage) {
        let Some(wishes) = &self.wishes else { return };
        if self.annotations.len() >= wishes.max_entries.max(1) {
            self.annotations.pop_front();
        }
        let time_ns = self.scene.0.time_ns;
        self.annotations.push_back(Annotation { name: name.into(), stage, time_ns });
    }

    pub(crate) fn annotations(&self) -> Vec<Annotation> {
        self.annotations.iter().cloned().collect()
    }

    /// All entries, oldest first.
    pub(crate) fn entries(&self) -> Vec<TraceEntry> {
        let none: Arc<str> = "".into();
        let entry = |entry: &Entry| {
            let note = entry.note.map(|note| self.notes.get(note));
            let said = |said: fn(&Note) -> &Arc<str>| note.map_or(&none, |note| said(note)).clone();
            TraceEntry {
                action: entry.action,
                addr: entry.addr,
                size_bytes: entry.size_bytes,
                stream: entry.stream,
                pool: self.pools[entry.pool as usize],
                time_ns: entry.time_ns,
                context: entry.context.map(|context| self.contexts.get(context).clone()),
                compile_context: note.and_then(|note| note.compile_context.clone()),
                user_metadata: said(|note| &note.user_metadata),
                internal_metadata: said(|note| &note.internal_metadata),
            }
        };
        self.ring.iter().map(entry).collect()
    }

    /// Whose contexts are kept.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Owner> + '_ {
        self.owners.keys().copied()
    }

    /// Checks that everything kept has as many uses as there are names of it; for tests.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let scene = &self.scene.0;
        let contexts = self.ring.iter().filter_map(|entry| entry.context);
        let contexts = contexts.chain(self.owners.values().copied()).chain(scene.context);
        let away = || self.away.0.values();
        let contexts = contexts.chain(away().filter_map(|scene| scene.context));
        self.contexts.check(contexts)?;
        let recent = self.recent_note.as_ref().map(|(_, note)| *note);
        let notes = self.ring.iter().filter_map(|entry| entry.note);
        let notes = notes.chain(away().filter_map(|scene| scene.note));
        self.notes.check(notes.chain(scene.note).chain(recent))
    }

    /// Whether any context is kept, or waits to be dropped.
    pub(crate) fn has_contexts(&self) -> bool {
        self.contexts.len() > 0
    }

    /// How many different contexts are kept.
    pub(crate) fn context_count(&self) -> usize {
        self.contexts.len()
    }

    /// Contexts that nobody names any more, to be dropped once the lock is.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<dyn Context>> {
        self.notes.take_dropped();
        self.contexts.take_dropped()
    }
}
