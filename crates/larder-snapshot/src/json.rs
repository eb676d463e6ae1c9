//! JSON: a snapshot as JSON, with the keys of torch's dictionary. `docs/snapshot.schema.json` is
//! its schema.

use std::fmt;
use std::io::{self, Read, Write};

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::ser::{CompactFormatter, Formatter};
use serde_json::{Map, Value};

use super::build::{Builder, NewEntry};
use super::emit::{self, Emitter};
use super::entry::{Action, BlockInfo, BlockState, SegmentInfo, StackId};
use super::{Snapshot, SnapshotError, word};

impl Snapshot {
    /// Writes the snapshot as JSON.
    pub fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        let mut json = Json { out: &mut out, first: Vec::new(), format: CompactFormatter };
        emit::snapshot(self, &mut json)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// Reads a snapshot that was written as JSON.
    pub fn read_json(reader: impl Read) -> Result<Snapshot, SnapshotError> {
        let mut builder = Builder::new();
        let mut deserializer = serde_json::Deserializer::from_reader(reader);
        let result = Top(&mut builder)
            .deserialize(&mut deserializer)
            .and_then(|()| deserializer.end())
            .map_err(|error| SnapshotError::Shape(format!("this is no JSON snapshot: {error}")));
        result.map(|()| builder.finish())
    }
}

struct Json<'a, W> {
    out: &'a mut W,
    /// For each open container, whether its next item is its first.
    first: Vec<bool>,
    format: CompactFormatter,
}

impl<W: Write> Json<'_, W> {
    fn is_first(&mut self) -> bool {
        self.first.last_mut().is_none_or(|first| std::mem::replace(first, false))
    }
}

impl<W: Write> Emitter for Json<'_, W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.first.push(true);
        self.format.begin_object(self.out)
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        let first = self.is_first();
        self.format.begin_object_key(self.out, first)?;
        serde_json::to_writer(&mut *self.out, key)?;
        self.format.begin_object_value(self.out)
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.first.pop();
        self.format.end_object(self.out)
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.first.push(true);
        self.format.begin_array(self.out)
    }

    fn item(&mut self) -> io::Result<()> {
        let first = self.is_first();
        self.format.begin_array_value(self.out, first)
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.first.pop();
        self.format.end_array(self.out)
    }

    fn none(&mut self) -> io::Result<()> {
        self.format.write_null(self.out)
    }

    fn boolean(&mut self, is: bool) -> io::Result<()> {
        self.format.write_bool(self.out, is)
    }

    fn integer(&mut self, number: i64) -> io::Result<()> {
        self.format.write_i64(self.out, number)
    }

    fn float(&mut self, number: f64) -> io::Result<()> {
        Ok(serde_json::to_writer(&mut *self.out, &number)?)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        Ok(serde_json::to_writer(&mut *self.out, text)?)
    }

    fn pool(&mut self, pool: (u64, u64)) -> io::Result<()> {
        write!(self.out, "[{},{}]", pool.0, pool.1)
    }

    fn is_repeated(&mut self, _: u32) -> io::Result<bool> {
        Ok(false)
    }

    fn may_repeat(&mut self, _: u32) -> io::Result<()> {
        Ok(())
    }
}

/// An address, a number of bytes or a time. Torch's numbers have a sign, so that such a one has 63
/// bits.
#[derive(Clone, Copy)]
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        let number = u64::deserialize(deserializer)?;
        if i64::try_from(number).is_err() {
            return Err(de::Error::custom(format_args!("{number} has more than 63 bits")));
        }
        Ok(Number(number))
    }
}

#[derive(Deserialize)]
struct FrameText {
    name: String,
    filename: String,
    line: u32,
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Deserialize)]
struct BlockText {
    address: Number,
    size: Number,
    requested_size: Number,
    state: StateText,
    frames: Option<Vec<FrameText>>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StateText {
    ActiveAllocated,
    ActivePendingFree,
    Inactive,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindText {
    Small,
    Large,
}

#[derive(Deserialize)]
struct SegmentText {
    device: u32,
    address: Number,
    total_size: Number,
    stream: i64,
    segment_type: KindText,
    segment_pool_id: (u64, u64),
    is_expandable: bool,
    frames: Option<Vec<FrameText>>,
    blocks: Vec<BlockText>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Deserialize)]
struct EntryText {
    action: String,
    addr: Option<Number>,
    device_free: Option<Number>,
    size: Number,
    stream: i64,
    time_us: Option<Number>,
    compile_context: Option<String>,
    user_metadata: Option<String>,
    pool_id: Option<(u64, u64)>,
    frames: Option<Vec<FrameText>>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

fn stack(builder: &mut Builder, frames: Option<Vec<FrameText>>) -> Option<StackId> {
    let numbers: Vec<u32> = frames?
        .into_iter()
        .map(|frame| builder.frame(&frame.name, &frame.filename, frame.line, frame.more))
        .collect();
    builder.stack(&numbers)
}

/// Whether the addresses from `addr` on can be counted.
fn fits<E: de::Error>(Number(addr): Number, Number(size_bytes): Number) -> Result<(), E> {
    match i64::try_from(addr + size_bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(E::custom(format_args!("what is at {addr} reaches past the last address"))),
    }
}

fn push_segment<E: de::Error>(builder: &mut Builder, text: SegmentText) -> Result<(), E> {
    fits(text.address, text.total_size)?;
    let mut blocks = Vec::with_capacity(text.blocks.len());
    for block in text.blocks {
        fits(block.address, block.size)?;
        let mut info = BlockInfo {
            addr: block.address.0,
            size_bytes: block.size.0,
            requested_bytes: block.requested_size.0,
            stack: stack(builder, block.frames),
            state: match block.state {
                StateText::ActiveAllocated => BlockState::Allocated,
                StateText::ActivePendingFree => BlockState::PendingFree,
                StateText::Inactive => BlockState::Inactive,
            },
            more: None,
        };
        builder.block_more(&mut info, block.more);
        blocks.push(info);
    }
    let stack = stack(builder, text.frames);
    builder.segments.push(SegmentInfo {
        device: text.device,
        addr: text.address.0,
        size_bytes: text.total_size.0,
        stream: text.stream as u64,
        pool_id: text.segment_pool_id,
        is_small: text.segment_type == KindText::Small,
        is_expandable: text.is_expandable,
        stack,
        blocks,
        more: text.more,
    });
    Ok(())
}

fn push_entry<E: de::Error>(builder: &mut Builder, text: EntryText) -> Result<(), E> {
    let mut more = text.more;
    let action = word::action_named(&text.action);
    if action == Action::Other {
        more.insert("action".to_owned(), text.action.into());
    }
    let addr = text.device_free.or(text.addr).ok_or_else(|| E::missing_field("addr"))?;
    fits(addr, text.size)?;
    let stack = stack(builder, text.frames);
    builder.entry(NewEntry {
        action,
        addr: addr.0,
        size_bytes: text.size.0,
        stream: text.stream as u64,
        time_us: text.time_us.map(|time| time.0),
        compile_context: text.compile_context.as_deref(),
        user_metadata: text.user_metadata.as_deref(),
        pool_id: text.pool_id,
        stack,
        more,
    });
    Ok(())
}

/// The whole file: a dictionary, or a list of segments.
struct Top<'a>(&'a mut Builder);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a snapshot")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        Segments(self.0).visit_seq(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut more = Map::new();
        let mut has_segments = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "segments" => {
                    map.next_value_seed(Segments(self.0))?;
                    has_segments = true;
                }
                "device_traces" => map.next_value_seed(Traces(self.0))?,
                _ => {
                    let value = map.next_value()?;
                    more.insert(key, value);
                }
            }
        }
        if !has_segments {
            return Err(de::Error::missing_field("segments"));
        }
        self.0.more = Some(more);
        Ok(())
    }
}

/// Lists whose items are taken one by one, so that a long one never exists as text.
macro_rules! list_of {
    ($name:ident, $what:literal, $builder:ident, $items:ident, $take:expr) => {
        struct $name<'a>(&'a mut Builder);

        impl<'de> DeserializeSeed<'de> for $name<'_> {
            type Value = ();

            fn deserialize<D: de::Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<(), D::Error> {
                deserializer.deserialize_seq(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($what)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut $items: A) -> Result<(), A::Error> {
                let $builder = self.0;
                $take
            }
        }
    };
}

list_of!(Segments, "a list of segments", builder, items, {
    while let Some(segment) = items.next_element()? {
        push_segment(builder, segment)?;
    }
    Ok(())
});

list_of!(Traces, "a list of traces", builder, items, {
    while items.next_element_seed(Trace(builder))?.is_some() {}
    Ok(())
});

list_of!(Trace, "a list of entries", builder, items, {
    builder.begin_trace();
    while let Some(entry) = items.next_element()? {
        push_entry(builder, entry)?;
    }
    Ok(())
});
