//! Trees: what a snapshot says besides what is understood here, kept as it is.

use serde_json::{Map, Number, Value as Json};

use super::part::Part;
use super::stacks::Stacks;
use crate::pickle::{Content, Objects, Value};

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

/// The text of an object.
pub(super) fn text_of(object: Map<String, Json>) -> String {
    Json::Object(object).to_string()
}

impl Trees {
    /// The tree of a dictionary with these pairs.
    pub(super) fn object(
        &mut self,
        objects: &Objects,
        stacks: &Stacks,
        pairs: &[(Value, Value)],
    ) -> Map<String, Json> {
        self.map(objects, stacks, pairs, 0)
    }

    fn map(
        &mut self,
        objects: &Objects,
        stacks: &Stacks,
        pairs: &[(Value, Value)],
        depth: u32,
    ) -> Map<String, Json> {
        let mut map = Map::new();
        for &(key, value) in pairs {
            let Value::Text(key) = key else {
                self.unkept += 1;
                continue;
            };
            let value = self.value(objects, stacks, value, depth + 1);
            map.insert(objects.text(key).to_owned(), value);
        }
        map
    }

    fn value(&mut self, objects: &Objects, stacks: &Stacks, value: Value, depth: u32) -> Json {
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
            Value::Tuple(id) => self.list(objects, stacks, objects.tuple(id), depth),
            Value::List(id) => match objects.list(id) {
                Content::Items(items) => self.list(objects, stacks, items, depth),
                Content::Token(token) => match Part::from_token(token) {
                    Part::Stack(Some(number)) => {
                        let frames = stacks.frames_of(number).iter();
                        frames.map(|&frame| frame_tree(objects, stacks, frame)).collect()
                    }
                    _ => self.leave_out(),
                },
            },
            Value::Dict(id) => match objects.dict(id) {
                Content::Items(pairs) => Json::Object(self.map(objects, stacks, pairs, depth)),
                Content::Token(token) => match Part::from_token(token) {
                    Part::Frame(number) => frame_tree(objects, stacks, number),
                    _ => self.leave_out(),
                },
            },
        }
    }

    fn list(&mut self, objects: &Objects, stacks: &Stacks, items: &[Value], depth: u32) -> Json {
        items.iter().map(|&item| self.value(objects, stacks, item, depth + 1)).collect()
    }

    fn leave_out(&mut self) -> Json {
        self.unkept += 1;
        Json::Null
    }
}

fn frame_tree(objects: &Objects, stacks: &Stacks, number: u32) -> Json {
    let frame = stacks.frame(number);
    let more = frame.more.and_then(|more| serde_json::from_str(objects.text(more)).ok());
    let mut map: Map<String, Json> = more.unwrap_or_default();
    map.insert("name".to_owned(), objects.text(frame.name).into());
    map.insert("filename".to_owned(), objects.text(frame.filename).into());
    map.insert("line".to_owned(), frame.line.into());
    Json::Object(map)
}
