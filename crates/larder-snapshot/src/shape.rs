//! Shape: from the pickled dictionary to a snapshot, naming what is wrong and where.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::entry::{BlockInfo, BlockState, SegmentInfo};
use super::part::Part;
use super::parts::{Parts, pool_id};
use super::{Snapshot, SnapshotError, word};
use crate::pickle::{Content, DictId, ListId, Objects, Pickle, Value};

type Pairs<'a> = &'a [(Value, Value)];

fn shape_error<T>(text: String) -> Result<T, SnapshotError> {
    Err(SnapshotError::Shape(text))
}

/// The value under a key; the last one counts, as in Python.
fn lookup(objects: &Objects, pairs: Pairs<'_>, key: &str) -> Option<Value> {
    let key = Value::Text(objects.text_id(key)?);
    pairs.iter().rev().find(|pair| pair.0 == key).map(|pair| pair.1)
}

/// A dictionary and the place where it stands, for messages.
struct Place<'a> {
    objects: &'a Objects,
    pairs: Pairs<'a>,
    name: String,
}

impl Place<'_> {
    fn required(&self, key: &str) -> Result<Value, SnapshotError> {
        match lookup(self.objects, self.pairs, key) {
            Some(value) => Ok(value),
            None => shape_error(format!("{} has no `{key}`", self.name)),
        }
    }

    fn unsigned(&self, key: &str) -> Result<u64, SnapshotError> {
        match self.required(key)? {
            Value::Int(number) if number >= 0 => Ok(number as u64),
            Value::Int(number) => {
                shape_error(format!("{}: `{key}` is {number}, less than 0", self.name))
            }
            value => shape_error(format!(
                "{}: `{key}` is of type {}, not an integer of 64 bits",
                self.name,
                value.type_name()
            )),
        }
    }

    fn list(&self, key: &str) -> Result<ListId, SnapshotError> {
        match self.required(key)? {
            Value::List(id) => Ok(id),
            value => shape_error(format!(
                "{}: `{key}` is of type {}, not a list",
                self.name,
                value.type_name()
            )),
        }
    }
}

/// The snapshot behind the root of a pickle.
pub(super) fn snapshot(pickle: Pickle<Parts>) -> Result<Snapshot, SnapshotError> {
    let Pickle { root, mut objects, sink: mut parts } = pickle;
    let (segments, traces, allocator_conf, more) = match root {
        // What torch.cuda.memory_snapshot() returns: the segments alone.
        Value::List(list) => (segments(&mut objects, &mut parts, list)?, Vec::new(), None, None),
        Value::Dict(id) => {
            let Some(pairs) = objects.dict(id).items() else {
                return shape_error("this is one record of a snapshot, not a snapshot".to_owned());
            };
            let top = Place { objects: &objects, pairs, name: "the snapshot".to_owned() };
            let segment_list = top.list("segments")?;
            let traces = match lookup(&objects, pairs, "device_traces") {
                None => None,
                Some(_) => Some(top.list("device_traces")?),
            };
            let allocator_conf = allocator_conf(&objects, pairs);
            let more = others(&objects, &mut parts, pairs, &["segments", "device_traces"]);
            let segments = segments(&mut objects, &mut parts, segment_list)?;
            let traces = match traces {
                None => Vec::new(),
                Some(list) => device_traces(&mut objects, &mut parts, list)?,
            };
            (segments, traces, allocator_conf, Some(more))
        }
        value => {
            return shape_error(format!(
                "this is not a memory snapshot: the file holds something of type {}, not a dict",
                value.type_name()
            ));
        }
    };
    let (frames, stacks) = parts.stacks.into_parts();
    Ok(Snapshot {
        segments,
        allocator_conf,
        more,
        unkept_values: parts.trees.unkept,
        entries_more: parts.more,
        entries: parts.entries,
        traces,
        frames,
        stacks,
        notes: parts.notes,
        pools: parts.pools,
        texts: objects.into_texts(),
    })
}

fn allocator_conf(objects: &Objects, pairs: Pairs<'_>) -> Option<String> {
    let Value::Dict(settings) = lookup(objects, pairs, "allocator_settings")? else { return None };
    let settings = objects.dict(settings).items()?;
    match lookup(objects, settings, "PYTORCH_CUDA_ALLOC_CONF")? {
        Value::Text(text) => Some(objects.text(text).to_owned()),
        _ => None,
    }
}

/// What a dictionary has besides these keys.
fn others(
    objects: &Objects,
    parts: &mut Parts,
    pairs: Pairs<'_>,
    known: &[&str],
) -> serde_json::Map<String, serde_json::Value> {
    let is_known =
        |key: Value| matches!(key, Value::Text(text) if known.contains(&objects.text(text)));
    let rest: Vec<_> = pairs.iter().copied().filter(|&(key, _)| !is_known(key)).collect();
    parts.object(objects, &rest)
}

fn segments(
    objects: &mut Objects,
    parts: &mut Parts,
    list: ListId,
) -> Result<Vec<SegmentInfo>, SnapshotError> {
    let Some(items) = objects.list(list).items().map(<[Value]>::to_vec) else {
        return shape_error("`segments` is a list of frames".to_owned());
    };
    // A file could mention one dictionary or one list of blocks a million times, and so make a
    // small file unfold into a large snapshot. No real one does.
    let mut dicts_seen: HashSet<DictId> = HashSet::new();
    let mut lists_seen: HashSet<ListId> = HashSet::new();
    let mut segments = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let name = format!("segments[{index}]");
        let Value::Dict(id) = *item else {
            return shape_error(format!("{name} is of type {}, not a dict", item.type_name()));
        };
        let Some(pairs) = objects.dict(id).items().map(<[_]>::to_vec) else {
            return shape_error(format!("{name} is not a segment"));
        };
        if !dicts_seen.insert(id) {
            return shape_error(format!("{name} is the same object as an earlier segment"));
        }
        let place = Place { objects, pairs: &pairs, name };
        let blocks = place.list("blocks")?;
        if !lists_seen.insert(blocks) {
            return shape_error(format!("{} shares its blocks with another one", place.name));
        }
        let mut segment = segment(&place, parts, blocks)?;
        let frames = lookup(objects, &pairs, "frames").unwrap_or(Value::None);
        segment.more = others(objects, parts, &pairs, &SEGMENT_KEYS);
        segment.stack = parts.stack(objects, frames);
        segments.push(segment);
    }
    Ok(segments)
}

/// The keys of a segment that have a field of their own.
const SEGMENT_KEYS: [&str; 9] = [
    "device",
    "address",
    "total_size",
    "stream",
    "segment_pool_id",
    "segment_type",
    "is_expandable",
    "frames",
    "blocks",
];

fn segment(place: &Place<'_>, parts: &Parts, blocks: ListId) -> Result<SegmentInfo, SnapshotError> {
    let objects = place.objects;
    let name = &place.name;
    let addr = place.unsigned("address")?;
    let size_bytes = place.unsigned("total_size")?;
    if addr.checked_add(size_bytes).is_none() {
        return shape_error(format!("{name} reaches past the last address"));
    }
    let Value::Int(stream) = place.required("stream")? else {
        return shape_error(format!("{name}: `stream` is not an integer of 64 bits"));
    };
    let pool_id = match lookup(objects, place.pairs, "segment_pool_id") {
        // Before torch 2.0 there was no such key, and nothing to tell pools apart.
        None => (0, 0),
        Some(value) => match pool_id(objects, value) {
            Some(pool_id) => pool_id,
            None => return shape_error(format!("{name}: `segment_pool_id` is not two numbers")),
        },
    };
    let segment_type = lookup(objects, place.pairs, "segment_type");
    let is_expandable = lookup(objects, place.pairs, "is_expandable");
    Ok(SegmentInfo {
        device: match u32::try_from(place.unsigned("device")?) {
            Ok(device) => device,
            Err(_) => return shape_error(format!("{name}: `device` is not a device number")),
        },
        addr,
        size_bytes,
        stream: stream as u64,
        pool_id,
        is_small: matches!(segment_type, Some(Value::Text(text)) if objects.text(text) == "small"),
        is_expandable: is_expandable == Some(Value::Bool(true)),
        stack: None,
        blocks: block_list(place, parts, blocks, addr)?,
        more: serde_json::Map::new(),
    })
}

fn block_list(
    place: &Place<'_>,
    parts: &Parts,
    list: ListId,
    segment_addr: u64,
) -> Result<Vec<BlockInfo>, SnapshotError> {
    let Some(items) = place.objects.list(list).items() else {
        return shape_error(format!("{}: `blocks` is a list of frames", place.name));
    };
    let mut blocks: Vec<BlockInfo> = Vec::with_capacity(items.len());
    let mut next_addr = segment_addr;
    for (index, item) in items.iter().enumerate() {
        let name = || format!("{}.blocks[{index}]", place.name);
        let Value::Dict(id) = *item else {
            return shape_error(format!("{} is of type {}, not a dict", name(), item.type_name()));
        };
        let block = match place.objects.dict(id) {
            Content::Token(token) => match Part::from_token(token) {
                Part::Block(number) => parts.blocks[number as usize],
                _ => return shape_error(format!("{} is not a block", name())),
            },
            Content::Items(pairs) => {
                old_block(&Place { objects: place.objects, pairs, name: name() }, next_addr)?
            }
        };
        let Some(end) = block.addr.checked_add(block.size_bytes) else {
            return shape_error(format!("{} reaches past the last address", name()));
        };
        next_addr = end;
        blocks.push(block);
    }
    Ok(blocks)
}

/// A block as torch wrote it before blocks had addresses: it begins where the last one ended.
fn old_block(place: &Place<'_>, addr: u64) -> Result<BlockInfo, SnapshotError> {
    let state = match place.required("state")? {
        Value::Text(text) => word::state(text),
        _ => None,
    };
    let Some(state) = state else {
        return shape_error(format!("{}: `state` is not a known state", place.name));
    };
    if lookup(place.objects, place.pairs, "address").is_some() {
        // With an address it would have been taken over, had the address been a proper one.
        place.unsigned("address")?;
    }
    let requested_bytes = match (lookup(place.objects, place.pairs, "requested_size"), state) {
        (Some(_), BlockState::Allocated) => place.unsigned("requested_size")?,
        _ => 0,
    };
    let size_bytes = place.unsigned("size")?;
    Ok(BlockInfo { addr, size_bytes, requested_bytes, stack: None, state, more: None })
}

/// For each device, which of the entries are its trace.
fn device_traces(
    objects: &mut Objects,
    parts: &mut Parts,
    list: ListId,
) -> Result<Vec<Range<usize>>, SnapshotError> {
    let Some(devices) = objects.list(list).items().map(<[Value]>::to_vec) else {
        return shape_error("`device_traces` is a list of frames".to_owned());
    };
    parts.own_entries = parts.entries.len();
    let mut known: HashMap<ListId, Range<usize>> = HashMap::new();
    let mut traces = Vec::with_capacity(devices.len());
    for (device, value) in devices.into_iter().enumerate() {
        let Value::List(list) = value else {
            let type_name = value.type_name();
            return shape_error(format!(
                "device_traces[{device}] is of type {type_name}, not a list"
            ));
        };
        let range = match known.get(&list) {
            Some(range) => range.clone(),
            None => trace(objects, parts, list, device)?,
        };
        known.insert(list, range.clone());
        traces.push(range);
    }
    Ok(traces)
}

/// The range of the entries that are this list. As a rule they lie there in order already.
fn trace(
    objects: &mut Objects,
    parts: &mut Parts,
    list: ListId,
    device: usize,
) -> Result<Range<usize>, SnapshotError> {
    let Some(items) = objects.list(list).items() else {
        return shape_error(format!("device_traces[{device}] is a list of frames"));
    };
    let mut first = None;
    let mut in_order = true;
    for (index, item) in items.iter().enumerate() {
        match entry_number(objects, *item) {
            Some(number) => {
                in_order &= number == *first.get_or_insert(number) + index;
            }
            None => return Err(not_an_entry(objects, parts, *item, device, index)),
        }
    }
    let first = first.unwrap_or(0);
    if in_order {
        return Ok(first..first + items.len());
    }
    let start = parts.entries.len();
    // A file could mention one entry in many places, and so make a small file unfold into a large
    // snapshot. No real one does.
    if start + items.len() > 2 * parts.own_entries {
        return shape_error("`device_traces` has more entries than the file holds".to_owned());
    }
    for item in items {
        if let Some(number) = entry_number(objects, *item) {
            if let Some(&more) = parts.more.get(&(number as u32)) {
                parts.more.insert(parts.entries.len() as u32, more);
            }
            parts.entries.push(parts.entries[number]);
        }
    }
    Ok(start..parts.entries.len())
}

fn entry_number(objects: &Objects, value: Value) -> Option<usize> {
    let Value::Dict(id) = value else { return None };
    match objects.dict(id) {
        Content::Token(token) => match Part::from_token(token) {
            Part::Entry(number) => Some(number as usize),
            _ => None,
        },
        Content::Items(_) => None,
    }
}

fn not_an_entry(
    objects: &mut Objects,
    parts: &mut Parts,
    value: Value,
    device: usize,
    index: usize,
) -> SnapshotError {
    let what = match value {
        Value::Dict(id) => match objects.dict(id).items().map(<[_]>::to_vec) {
            Some(pairs) => parts.entry_complaint(objects, &pairs),
            None => "is not an entry of a trace".to_owned(),
        },
        value => format!("is of type {}, not a dict", value.type_name()),
    };
    SnapshotError::Shape(format!("device_traces[{device}][{index}] {what}"))
}
