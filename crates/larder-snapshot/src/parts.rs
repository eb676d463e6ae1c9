//! Parts: takes over the small dictionaries of a snapshot while the pickle is read.

use std::collections::HashMap;
use std::num::NonZeroU32;

use serde_json::{Map, Value as Json};

use super::entry::{Action, BlockInfo, Frame, Note, NoteId, PoolKey, StackId, TraceEntry};
use super::part::{NUMBER_MAX, Part};
use super::stacks::Stacks;
use super::tree::{Taken, Trees, text_of};
use super::word::{self, KEY_COUNT};
use crate::pickle::{Content, ListId, Objects, Sink, TextId, Value};

/// The values of a dictionary under the keys that parts have, and which other keys there are.
pub(super) struct Fields([Value; KEY_COUNT], u32);

/// The bit for keys that no record has.
const STRANGE: u32 = 1 << KEY_COUNT;

impl Fields {
    fn new(pairs: impl Iterator<Item = (Value, Value)>) -> Fields {
        let mut fields = [Value::None; KEY_COUNT];
        let mut keys = 0;
        for (key, value) in pairs {
            if let Value::Text(TextId(number)) = key
                && let Some(field) = fields.get_mut(number as usize)
            {
                *field = value;
                keys |= 1 << number;
            } else {
                keys |= STRANGE;
            }
        }
        Fields(fields, keys)
    }

    fn complaint(&self, key: usize, wanted: &str) -> String {
        let key_name = word::WORDS[key];
        match self.0[key] {
            Value::None => format!("has no `{key_name}`"),
            Value::Int(number) if number < 0 => format!("has a negative `{key_name}`"),
            Value::Float(number) if number.fract() == 0.0 && number.abs() >= 2_f64.powi(63) => {
                format!("has a `{key_name}` that is too large")
            }
            value => {
                format!("has something of type {} as `{key_name}`, not {wanted}", value.type_name())
            }
        }
    }

    fn unsigned(&self, key: usize) -> Result<u64, String> {
        match self.0[key] {
            Value::Int(number) if number >= 0 => Ok(number as u64),
            _ => Err(self.complaint(key, "an integer of 64 bits")),
        }
    }

    fn text(&self, key: usize) -> Result<TextId, String> {
        match self.0[key] {
            Value::Text(text) => Ok(text),
            _ => Err(self.complaint(key, "a text")),
        }
    }

    fn optional_text(&self, key: usize) -> Option<TextId> {
        match self.0[key] {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Everything that was taken over, and what of it is shared.
pub(super) struct Parts {
    pub(super) entries: Vec<TraceEntry>,
    /// How many of the entries the file itself holds; behind them come copies in another order.
    pub(super) own_entries: usize,
    pub(super) blocks: Vec<BlockInfo>,
    pub(super) stacks: Stacks,
    pub(super) notes: Vec<Note>,
    note_numbers: HashMap<Note, NoteId>,
    pub(super) pools: Vec<(u64, u64)>,
    pool_numbers: HashMap<(u64, u64), PoolKey>,
    /// What else is said of an entry, by its number, as the text of a JSON object.
    pub(super) more: HashMap<u32, TextId>,
    /// What could not be kept.
    pub(super) trees: Trees,
}

impl Parts {
    pub(super) fn new() -> Parts {
        Parts {
            entries: Vec::new(),
            own_entries: 0,
            blocks: Vec::new(),
            stacks: Stacks::new(),
            notes: Vec::new(),
            note_numbers: HashMap::new(),
            pools: Vec::new(),
            pool_numbers: HashMap::new(),
            more: HashMap::new(),
            trees: Trees::default(),
        }
    }

    /// What a dictionary says besides the keys of its kind, as the text of a JSON object.
    fn more(
        &mut self,
        objects: &mut Objects,
        fields: &Fields,
        known: u32,
        pairs: &[Value],
    ) -> Option<TextId> {
        if fields.1 & !known == 0 {
            return None;
        }
        let is_known = |key: Value| match key {
            Value::Text(TextId(number)) => number < 32 && known >> number & 1 != 0,
            _ => false,
        };
        let pairs = pairs.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let rest: Vec<_> = pairs.filter(|&(key, _)| !is_known(key)).collect();
        let object = self.object(objects, &rest);
        objects.intern_text(text_of(object).as_bytes()).ok()
    }

    /// A dictionary with these pairs as a tree.
    pub(super) fn object(
        &mut self,
        objects: &Objects,
        pairs: &[(Value, Value)],
    ) -> Map<String, Json> {
        let Parts { entries, blocks, stacks, notes, pools, more, trees, .. } = self;
        trees.object(objects, &Taken { entries, blocks, stacks, notes, pools, more }, pairs)
    }

    /// What is wrong with a dictionary that should be an entry of a trace.
    pub(super) fn entry_complaint(
        &mut self,
        objects: &mut Objects,
        pairs: &[(Value, Value)],
    ) -> String {
        let fields = Fields::new(pairs.iter().copied());
        self.entry(objects, &fields).err().unwrap_or_else(|| {
            "was written key by key, as pickle protocol 0 does; use protocol 2 or later".to_owned()
        })
    }

    pub(super) fn entry(
        &mut self,
        objects: &mut Objects,
        fields: &Fields,
    ) -> Result<TraceEntry, String> {
        let action = word::action(fields.text(word::ACTION)?);
        let addr = match fields.0[word::DEVICE_FREE] {
            Value::None => fields.unsigned(word::ADDR)?,
            _ => fields.unsigned(word::DEVICE_FREE)?,
        };
        let Value::Int(stream) = fields.0[word::STREAM] else {
            return Err(fields.complaint(word::STREAM, "an integer of 64 bits"));
        };
        let pool = match fields.0[word::POOL_ID] {
            Value::None => None,
            value => {
                Some(pool_id(objects, value).ok_or("has a `pool_id` that is not two numbers")?)
            }
        };
        let size_bytes = fields.unsigned(word::SIZE)?;
        if addr.checked_add(size_bytes).is_none() {
            return Err("reaches past the last address".to_owned());
        }
        Ok(TraceEntry {
            addr,
            size_bytes,
            // A handle is a pointer; as an integer it may well be negative.
            stream: stream as u64,
            time_us: fields.unsigned(word::TIME_US).unwrap_or(0),
            stack: self.stack(objects, fields.0[word::FRAMES]),
            note: self.note(fields),
            pool: pool.map(|pool| self.pool(pool)),
            action,
            has_time: fields.unsigned(word::TIME_US).is_ok(),
            has_more: false,
        })
    }

    fn block(&mut self, objects: &mut Objects, fields: &Fields) -> Option<BlockInfo> {
        Some(BlockInfo {
            addr: fields.unsigned(word::ADDRESS).ok()?,
            size_bytes: fields.unsigned(word::SIZE).ok()?,
            requested_bytes: fields.unsigned(word::REQUESTED_SIZE).unwrap_or(0),
            stack: self.stack(objects, fields.0[word::FRAMES]),
            state: word::state(fields.text(word::STATE).ok()?)?,
            more: None,
        })
    }

    fn frame(&mut self, fields: &Fields, more: Option<TextId>) -> Option<u32> {
        let frame = Frame {
            name: fields.text(word::NAME).ok()?,
            filename: fields.text(word::FILENAME).ok()?,
            line: fields.unsigned(word::LINE).ok()?.try_into().unwrap_or(u32::MAX),
            more,
        };
        Some(self.stacks.add_frame(frame))
    }

    /// The call stack behind a list of frames. The list is replaced, so that it is walked once
    /// however many entries share it.
    pub(super) fn stack(&mut self, objects: &mut Objects, value: Value) -> Option<StackId> {
        let Value::List(list) = value else { return None };
        let number = match objects.list(list) {
            Content::Items([]) => return self.stacks.add(&[]),
            Content::Token(token) => match Part::from_token(token) {
                Part::Stack(number) => number,
                _ => None,
            },
            Content::Items(_) => self.stack_of_list(objects, list),
        };
        number.and_then(|number| NonZeroU32::new(number + 1)).map(StackId)
    }

    fn stack_of_list(&mut self, objects: &mut Objects, list: ListId) -> Option<u32> {
        let items = objects.list(list).items()?;
        let frames: Option<Vec<u32>> = items
            .iter()
            .map(|item| match *item {
                Value::Dict(id) => match objects.dict(id) {
                    Content::Token(token) => match Part::from_token(token) {
                        Part::Frame(number) => Some(number),
                        _ => None,
                    },
                    Content::Items(_) => None,
                },
                _ => None,
            })
            .collect();
        let number = frames.and_then(|frames| self.stacks.intern(&frames));
        let number = number.filter(|&number| number < NUMBER_MAX);
        objects.replace_list(list, Part::Stack(number).token().unwrap_or(u32::MAX));
        number
    }

    fn note(&mut self, fields: &Fields) -> NoteId {
        let note = Note {
            compile_context: fields.optional_text(word::COMPILE_CONTEXT),
            user_metadata: fields.optional_text(word::USER_METADATA),
        };
        self.add_note(note)
    }

    pub(super) fn add_note(&mut self, note: Note) -> NoteId {
        // Neighbours nearly always have the same remarks.
        if let Some(last) = self.entries.last()
            && self.notes[last.note.0 as usize] == note
        {
            return last.note;
        }
        let id = *self.note_numbers.entry(note).or_insert(NoteId(self.notes.len() as u32));
        if id.0 as usize == self.notes.len() {
            self.notes.push(note);
        }
        id
    }

    pub(super) fn pool(&mut self, pool_id: (u64, u64)) -> PoolKey {
        if let Some(&key) = self.pool_numbers.get(&pool_id) {
            return key;
        }
        self.pools.push(pool_id);
        let key = PoolKey(NonZeroU32::MIN.saturating_add(self.pools.len() as u32 - 1));
        self.pool_numbers.insert(pool_id, key);
        key
    }
}

/// The two numbers of a pool id, which Python writes as a tuple and torch's own pickler as a tuple
/// or a list.
pub(super) fn pool_id(objects: &Objects, value: Value) -> Option<(u64, u64)> {
    let items = match value {
        Value::Tuple(id) => objects.tuple(id),
        Value::List(id) => objects.list(id).items()?,
        _ => return None,
    };
    match *items {
        // As with streams, the high half of what 64 bits can say is negative.
        [Value::Int(first), Value::Int(second)] => Some((first as u64, second as u64)),
        _ => None,
    }
}

impl Sink for Parts {
    fn vocabulary(&self) -> &'static [&'static str] {
        word::WORDS
    }

    /// Takes over what is a proper record. What is not stays a dictionary, and is complained about
    /// when its place in the snapshot is known.
    fn dict_filled(&mut self, objects: &mut Objects, pairs: &[Value]) -> Option<u32> {
        let fields = Fields::new(pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        if fields.0[word::ACTION] != Value::None {
            let number = self.entries.len() as u32;
            let token = Part::Entry(number).token()?;
            let mut entry = self.entry(objects, &fields).ok()?;
            // The name of an action that is not known is kept with what else there is.
            let known = word::ENTRY_KEYS & !u32::from(entry.action == Action::Other);
            if let Some(more) = self.more(objects, &fields, known, pairs) {
                entry.has_more = true;
                self.more.insert(number, more);
            }
            self.entries.push(entry);
            Some(token)
        } else if fields.0[word::STATE] != Value::None {
            let token = Part::Block(self.blocks.len() as u32).token()?;
            let mut block = self.block(objects, &fields)?;
            block.more = self.more(objects, &fields, word::BLOCK_KEYS, pairs);
            self.blocks.push(block);
            Some(token)
        } else if fields.0[word::LINE] != Value::None {
            let more = self.more(objects, &fields, word::FRAME_KEYS, pairs);
            Part::Frame(self.frame(&fields, more)?).token()
        } else {
            None
        }
    }

    fn memory_bytes(&self) -> u64 {
        (self.entries.capacity() * size_of::<TraceEntry>()
            + self.blocks.capacity() * size_of::<BlockInfo>()
            + self.notes.capacity() * size_of::<Note>()
            + self.note_numbers.capacity() * 24
            + self.pools.capacity() * 16
            + self.pool_numbers.capacity() * 24
            + self.more.capacity() * 12) as u64
            + self.stacks.memory_bytes()
    }
}
