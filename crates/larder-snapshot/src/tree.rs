//! Trees: what a snapshot says besides what is understood here, kept as it is.

use std::collections::HashMap;

use serde_json::{Map, Number, Value as Json};

use super::entry::{Action, BlockInfo, Note, StackId, TraceEntry};
use super::part::Part;
use super::stacks::Stacks;
use super::word;
use crate::pickle::{Content, Objects, TextId, Value};

/// How deep a tree may be. What torch writes is four deep.
const DEPTH_MAX: u32 = 16;
/// How many values all trees of a file may have. A file could mention one list in many places, and
/// so unfold without end.
const VALUES_MAX: u64 = 1 << 24;

/// Turns Python objects into trees, and counts.
#[derive(Debug, Default)]
pub(super) struct Trees {
    values: u64,
    /// Values that are not kept: bytes, sets, keys that are no texts, and what is too much.
    pub(super) unkept: u64,
}

/// The records that were taken over before it was known where they stand. Those of the host's
/// memory are among them.
pub(super) struct Taken<'a> {
    pub(super) entries: &'a [TraceEntry],
    pub(super) blocks: &'a [BlockInfo],
    pub(super) stacks: &'a Stacks,
    pub(super) notes: &'a [Note],
    pub(super) pools: &'a [(u64, u64)],
    pub(super) more: &'a HashMap<u32, TextId>,
}

/// The text of an object.
pub(super) fn text_of(object: Map<String, Json>) -> String {
    Json::Object(object).to_string()
}

impl Trees {
    /// The tree of a dictionary with these pairs.
    pub(super) fn object(
        &mut self,
        objects: &Objects,
        taken: &Taken<'_>,
        pairs: &[(Value, Value)],
    ) -> Map<String, Json> {
        self.map(objects, taken, pairs, 0)
    }

    fn map(
        &mut self,
        objects: &Objects,
        taken: &Taken<'_>,
        pairs: &[(Value, Value)],
        depth: u32,
    ) -> Map<String, Json> {
        let mut map = Map::new();
        for &(key, value) in pairs {
            let Value::Text(key) = key else {
                self.unkept += 1;
                continue;
            };
            let value = self.value(objects, taken, value, depth + 1);
            map.insert(objects.text(key).to_owned(), value);
        }
        map
    }

    fn value(&mut self, objects: &Objects, taken: &Taken<'_>, value: Value, depth: u32) -> Json {
        self.values += 1;
        if depth > DEPTH_MAX || self.values > VALUES_MAX {
            self.unkept += 1;
            return Json::Null;
        }
        match value {
            Value::None => Json::Null,
            Value::Bool(is) => Json::Bool(is),
            Value::Int(number) => number.into(),
            Value::Float(number) => match Number::from_f64(number) {
                Some(number) => Json::Number(number),
                None => self.leave_out(),
            },
            Value::Text(text) => objects.text(text).into(),
            Value::Bytes(_) | Value::Set(_) => self.leave_out(),
            Value::Tuple(id) => self.list(objects, taken, objects.tuple(id), depth),
            Value::List(id) => match objects.list(id) {
                Content::Items(items) => self.list(objects, taken, items, depth),
                Content::Token(token) => match Part::from_token(token) {
                    Part::Stack(Some(number)) => taken.stack_tree(objects, number),
                    _ => self.leave_out(),
                },
            },
            Value::Dict(id) => match objects.dict(id) {
                Content::Items(pairs) => Json::Object(self.map(objects, taken, pairs, depth)),
                Content::Token(token) => match Part::from_token(token) {
                    Part::Frame(number) => taken.frame_tree(objects, number),
                    Part::Entry(number) => taken.entry_tree(objects, number),
                    Part::Block(number) => taken.block_tree(objects, number),
                    Part::Stack(_) => self.leave_out(),
                },
            },
        }
    }

    fn list(&mut self, objects: &Objects, taken: &Taken<'_>, items: &[Value], depth: u32) -> Json {
        items.iter().map(|&item| self.value(objects, taken, item, depth + 1)).collect()
    }

    fn leave_out(&mut self) -> Json {
        self.unkept += 1;
        Json::Null
    }
}

impl Taken<'_> {
    fn frame_tree(&self, objects: &Objects, number: u32) -> Json {
        let frame = self.stacks.frame(number);
        let mut map = object_of(objects, frame.more);
        map.insert("name".to_owned(), objects.text(frame.name).into());
        map.insert("filename".to_owned(), objects.text(frame.filename).into());
        map.insert("line".to_owned(), frame.line.into());
        Json::Object(map)
    }

    fn stack_tree(&self, objects: &Objects, number: u32) -> Json {
        let frames = self.stacks.frames_of(number).iter();
        frames.map(|&frame| self.frame_tree(objects, frame)).collect()
    }

    fn frames(&self, objects: &Objects, stack: StackId) -> Json {
        self.stack_tree(objects, stack.0.get() - 1)
    }

    fn entry_tree(&self, objects: &Objects, number: u32) -> Json {
        let entry = &self.entries[number as usize];
        let mut map = object_of(objects, self.more.get(&number).copied());
        let is_failure = entry.action == Action::OutOfMemory;
        let note = self.notes[entry.note.0 as usize];
        let text = |text: TextId| Json::from(objects.text(text));
        let pool = entry.pool.map(|key| self.pools[key.0.get() as usize - 1]);
        let members = [
            ("action", word::action_name(entry.action).map(Json::from)),
            (if is_failure { "device_free" } else { "addr" }, Some(entry.addr.into())),
            ("size", Some(entry.size_bytes.into())),
            // A handle is a pointer, and the high half of them are negative numbers to torch.
            ("stream", Some((entry.stream as i64).into())),
            ("time_us", entry.has_time.then(|| entry.time_us.into())),
            ("compile_context", note.compile_context.map(text)),
            ("user_metadata", note.user_metadata.map(text)),
            ("pool_id", pool.map(|(first, second)| Json::from(vec![first as i64, second as i64]))),
            ("frames", entry.stack.map(|stack| self.frames(objects, stack))),
        ];
        map.extend(members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        Json::Object(map)
    }

    fn block_tree(&self, objects: &Objects, number: u32) -> Json {
        let block = &self.blocks[number as usize];
        let mut map = object_of(objects, block.more);
        map.insert("address".to_owned(), block.addr.into());
        map.insert("size".to_owned(), block.size_bytes.into());
        map.insert("requested_size".to_owned(), block.requested_bytes.into());
        map.insert("state".to_owned(), word::state_name(block.state).into());
        let frames =
            block.stack.map_or(Json::Array(Vec::new()), |stack| self.frames(objects, stack));
        map.insert("frames".to_owned(), frames);
        Json::Object(map)
    }
}

/// The object that a text is of.
fn object_of(objects: &Objects, text: Option<TextId>) -> Map<String, Json> {
    text.and_then(|text| serde_json::from_str(objects.text(text)).ok()).unwrap_or_default()
}
