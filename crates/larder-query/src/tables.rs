//! Tables: what a recording tells, column by column.

use std::collections::HashMap;

use larder_snapshot::{Action, NoteId, PoolKey, Snapshot, StackId};
use larder_study::category::{Categories, OwnRules, module_of};
use larder_study::recording::{Origin, Recording, RecordingError};

/// A table with its columns, which are equally long.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its columns.
    pub columns: Vec<Column>,
}

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What stands in it.
    pub values: Values,
}

/// The values of a column; a place without one is empty.
#[derive(Clone, Debug)]
pub enum Values {
    /// Whole numbers.
    Whole(Vec<Option<i64>>),
    /// Texts, by their numbers among all that there are.
    Text(Vec<Option<u32>>, Vec<String>),
}

impl Table {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.columns.first().map_or(0, |column| match &column.values {
            Values::Whole(values) => values.len(),
            Values::Text(values, _) => values.len(),
        })
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Texts, each kept once.
#[derive(Default)]
struct Words {
    values: Vec<Option<u32>>,
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Words {
    fn push(&mut self, text: Option<&str>) {
        let value = text.map(|text| {
            if let Some(&number) = self.numbers.get(text) {
                return number;
            }
            let number = self.texts.len() as u32;
            self.texts.push(text.to_owned());
            self.numbers.insert(text.to_owned(), number);
            number
        });
        self.values.push(value);
    }

    fn column(self, name: &'static str) -> Column {
        Column { name, values: Values::Text(self.values, self.texts) }
    }
}

fn whole(name: &'static str, values: Vec<Option<i64>>) -> Column {
    Column { name, values: Values::Whole(values) }
}

/// The tables of a device's trace: `events`, `blocks`, `stacks` and `frames`.
pub fn tables(
    snapshot: &Snapshot,
    device: u32,
    rules: &OwnRules,
) -> Result<Vec<Table>, RecordingError> {
    let recording = Recording::from_snapshot(snapshot, device)?;
    let categories = Categories::of(snapshot, device, &recording.origins, rules);
    let mut stacks = Stacks::default();
    let events = events(snapshot, device, &recording, &mut stacks);
    let blocks = blocks(snapshot, device, &recording, &categories, &mut stacks);
    let (stacks, frames) = stacks.tables(snapshot);
    Ok(vec![events, blocks, stacks, frames])
}

/// The stacks that rows name, numbered from 1.
#[derive(Default)]
struct Stacks {
    all: Vec<StackId>,
    numbers: HashMap<StackId, i64>,
}

impl Stacks {
    /// The number of a stack; one without frames says nothing.
    fn number(&mut self, snapshot: &Snapshot, stack: Option<StackId>) -> Option<i64> {
        let stack = stack.filter(|&stack| snapshot.stack(stack).len() > 0)?;
        let next = self.all.len() as i64 + 1;
        let number = *self.numbers.entry(stack).or_insert(next);
        if number == next {
            self.all.push(stack);
        }
        Some(number)
    }

    fn tables(&self, snapshot: &Snapshot) -> (Table, Table) {
        let (mut module, mut text) = (Words::default(), Words::default());
        let (mut of, mut depth, mut lines) = (Vec::new(), Vec::new(), Vec::new());
        let (mut functions, mut files) = (Words::default(), Words::default());
        for (at, &stack) in self.all.iter().enumerate() {
            let mut words = Vec::new();
            for (deep, frame) in snapshot.stack(stack).enumerate() {
                let (function, file) = (snapshot.text(frame.name), snapshot.text(frame.filename));
                of.push(Some(at as i64 + 1));
                depth.push(Some(deep as i64));
                functions.push(Some(function));
                files.push(Some(file));
                lines.push(Some(i64::from(frame.line)));
                words.push(format!("{file}:{} {function}", frame.line));
            }
            module.push(module_of(snapshot, stack).as_deref());
            text.push(Some(&words.join("\n")));
        }
        let numbers = (1..=self.all.len() as i64).map(Some).collect();
        let stacks = vec![whole("stack", numbers), module.column("module"), text.column("frames")];
        let frames = vec![
            whole("stack", of),
            whole("depth", depth),
            functions.column("function"),
            files.column("file"),
            whole("line", lines),
        ];
        (Table { name: "stacks", columns: stacks }, Table { name: "frames", columns: frames })
    }
}

/// The words of what happened, as PyTorch has them.
fn action_name(action: Action) -> &'static str {
    match action {
        Action::Alloc => "alloc",
        Action::FreeRequested => "free_requested",
        Action::FreeCompleted => "free_completed",
        Action::SegmentAlloc => "segment_alloc",
        Action::SegmentFree => "segment_free",
        Action::SegmentMap => "segment_map",
        Action::SegmentUnmap => "segment_unmap",
        Action::Snapshot => "snapshot",
        Action::OutOfMemory => "oom",
        Action::Annotate => "annotate",
        Action::Other => "other",
    }
}

fn pool_name(snapshot: &Snapshot, pool: Option<PoolKey>) -> Option<String> {
    let (one, other) = snapshot.pool_id(pool?);
    Some(format!("{one}:{other}"))
}

/// What the program, or else the compiler, said of a moment.
fn remark(snapshot: &Snapshot, note: NoteId) -> Option<&str> {
    let note = snapshot.note(note);
    let texts = [note.user_metadata, note.compile_context].into_iter().flatten();
    let mut texts = texts.map(|text| snapshot.text(text));
    texts.find(|text| !text.is_empty() && *text != "N/A")
}

fn events(snapshot: &Snapshot, device: u32, recording: &Recording, stacks: &mut Stacks) -> Table {
    let trace = snapshot.trace(device).unwrap_or_default();
    // The blocks of the entries that begin and end them, by the numbers of the table of blocks.
    let mut block = vec![None; trace.len()];
    for (id, life) in recording.lives.iter().enumerate() {
        for index in [life.begin, life.end].into_iter().flatten() {
            block[index as usize] = Some(id as i64);
        }
    }
    let numbers = (0..trace.len() as i64).map(Some).collect();
    let (mut actions, mut pools, mut remarks) =
        (Words::default(), Words::default(), Words::default());
    let (mut addresses, mut bytes) = (Vec::new(), Vec::new());
    let (mut streams, mut times, mut stack) = (Vec::new(), Vec::new(), Vec::new());
    for entry in trace {
        actions.push(Some(action_name(entry.action)));
        addresses.push(Some(entry.addr as i64));
        bytes.push(Some(entry.size_bytes as i64));
        streams.push(Some(entry.stream as i64));
        pools.push(pool_name(snapshot, entry.pool).as_deref());
        times.push(entry.has_time.then_some(entry.time_us as i64));
        stack.push(stacks.number(snapshot, entry.stack));
        remarks.push(remark(snapshot, entry.note));
    }
    let columns = vec![
        whole("event", numbers),
        actions.column("action"),
        whole("address", addresses),
        whole("bytes", bytes),
        whole("stream", streams),
        pools.column("pool"),
        whole("time_us", times),
        whole("stack", stack),
        whole("block", block),
        remarks.column("remark"),
    ];
    Table { name: "events", columns }
}

/// What is known of a block from before the recording: its size and its stack.
type OldBlocks = HashMap<u64, (u64, Option<StackId>)>;

fn blocks(
    snapshot: &Snapshot,
    device: u32,
    recording: &Recording,
    categories: &Categories,
    stacks: &mut Stacks,
) -> Table {
    let trace = snapshot.trace(device).unwrap_or_default();
    let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
    let old: OldBlocks = segments
        .flat_map(|segment| &segment.blocks)
        .map(|block| (block.addr, (block.size_bytes, block.stack)))
        .collect();
    let refused: Vec<u64> = recording.refused.clone();
    let mut numbers = Vec::new();
    let (mut addresses, mut bytes, mut streams) = (Vec::new(), Vec::new(), Vec::new());
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    let (mut begin_times, mut end_times, mut stack) = (Vec::new(), Vec::new(), Vec::new());
    let (mut kinds, mut remarks) = (Words::default(), Words::default());
    for (id, (origin, life)) in recording.origins.iter().zip(&recording.lives).enumerate() {
        // What was refused never was a block.
        if refused.binary_search(&(id as u64)).is_ok() {
            continue;
        }
        let time = |index: Option<u32>| {
            let entry = &trace[index? as usize];
            entry.has_time.then_some(entry.time_us as i64)
        };
        let (address, size, from) = match *origin {
            Origin::Entry(index) => {
                let entry = &trace[index];
                streams.push(Some(entry.stream as i64));
                remarks.push(remark(snapshot, entry.note));
                (entry.addr, Some(entry.size_bytes), entry.stack)
            }
            Origin::Before(address) => {
                streams.push(None);
                remarks.push(None);
                let known = old.get(&address).copied().filter(|_| life.end.is_none());
                let gone = life.end.map(|end| trace[end as usize].size_bytes);
                (address, known.map(|(size, _)| size).or(gone), known.and_then(|(_, stack)| stack))
            }
        };
        numbers.push(Some(id as i64));
        addresses.push(Some(address as i64));
        bytes.push(size.map(|size| size as i64));
        begins.push(life.begin.map(i64::from));
        ends.push(life.end.map(i64::from));
        begin_times.push(time(life.begin));
        end_times.push(time(life.end));
        stack.push(stacks.number(snapshot, from));
        kinds.push(Some(categories.name(categories.get(id as u64))));
    }
    let columns = vec![
        whole("block", numbers),
        whole("address", addresses),
        whole("bytes", bytes),
        whole("stream", streams),
        whole("begin_event", begins),
        whole("end_event", ends),
        whole("begin_us", begin_times),
        whole("end_us", end_times),
        whole("stack", stack),
        kinds.column("category"),
        remarks.column("remark"),
    ];
    Table { name: "blocks", columns }
}
