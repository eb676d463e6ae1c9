//! Objects: the parts of texts, tuples, lists and dictionaries, in flat tables.

use std::borrow::Cow;
use std::collections::HashMap;

use super::interner::Interner;
use super::value::{BytesId, DictId, ListId, TextId, TupleId, Value};

/// What a list or dictionary is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content<'a, T> {
    /// Its items, in order.
    Items(&'a [T]),
    /// The number by which a [`Sink`](super::Sink) replaced it.
    Token(u32),
}

impl<'a, T> Content<'a, T> {
    /// The items, if it was not replaced.
    pub fn items(self) -> Option<&'a [T]> {
        match self {
            Content::Items(items) => Some(items),
            Content::Token(_) => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Slot {
    Empty,
    Body(u32),
    Token(u32),
}

/// Containers of one kind. A slot is eight bytes; only a container that has items and was not
/// replaced has a vector, and the vector of a replaced one is freed.
struct Shelf<T> {
    slots: Vec<Slot>,
    bodies: Vec<Vec<T>>,
    spare: Vec<u32>,
    /// The memory behind all bodies.
    items_bytes: u64,
}

/// Why a container could not be changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShelfError {
    /// A sink has replaced it.
    Replaced,
    /// There are more than 2³² containers.
    Full,
}

impl<T: Copy> Shelf<T> {
    fn new() -> Shelf<T> {
        Shelf { slots: Vec::new(), bodies: Vec::new(), spare: Vec::new(), items_bytes: 0 }
    }

    fn add(&mut self) -> Result<u32, ShelfError> {
        let number = u32::try_from(self.slots.len()).map_err(|_| ShelfError::Full)?;
        self.slots.push(Slot::Empty);
        Ok(number)
    }

    fn content(&self, number: u32) -> Content<'_, T> {
        match self.slots[number as usize] {
            Slot::Empty => Content::Items(&[]),
            Slot::Body(body) => Content::Items(&self.bodies[body as usize]),
            Slot::Token(token) => Content::Token(token),
        }
    }

    fn extend(
        &mut self,
        number: u32,
        items: impl ExactSizeIterator<Item = T>,
    ) -> Result<(), ShelfError> {
        let body = match self.slots[number as usize] {
            Slot::Token(_) => return Err(ShelfError::Replaced),
            Slot::Body(body) => body,
            Slot::Empty if items.len() == 0 => return Ok(()),
            Slot::Empty => {
                let body = self.spare.pop().unwrap_or(self.bodies.len() as u32);
                if body as usize == self.bodies.len() {
                    self.bodies.push(Vec::new());
                }
                self.slots[number as usize] = Slot::Body(body);
                body
            }
        };
        let body = &mut self.bodies[body as usize];
        let capacity_before = body.capacity();
        if body.is_empty() {
            // Most containers get all their items at once: spend no more than they need.
            body.reserve_exact(items.len());
        }
        body.extend(items);
        self.items_bytes += ((body.capacity() - capacity_before) * size_of::<T>()) as u64;
        Ok(())
    }

    fn replace(&mut self, number: u32, token: u32) {
        if let Slot::Body(body) = self.slots[number as usize] {
            let items = std::mem::take(&mut self.bodies[body as usize]);
            self.items_bytes -= (items.capacity() * size_of::<T>()) as u64;
            self.spare.push(body);
        }
        self.slots[number as usize] = Slot::Token(token);
    }

    fn memory_bytes(&self) -> u64 {
        self.items_bytes
            + (self.slots.capacity() * size_of::<Slot>()
                + self.bodies.capacity() * size_of::<Vec<T>>()
                + self.spare.capacity() * 4) as u64
    }
}

/// The texts of a pickle, once nothing else of it is needed.
pub struct Texts(Interner<u8>);

impl Texts {
    /// No texts but these, which get the ids 0, 1, 2, ….
    pub(crate) fn new(vocabulary: &[&str]) -> Texts {
        let mut texts = Interner::new();
        for word in vocabulary {
            let _ = texts.intern(word.as_bytes());
        }
        Texts(texts)
    }

    /// The id of a text, which is kept if it is not known. None if there are 2³² texts.
    pub(crate) fn intern(&mut self, text: &str) -> Option<TextId> {
        self.0.intern(text.as_bytes()).map(TextId)
    }

    /// The text of this id.
    pub fn get(&self, id: TextId) -> &str {
        // Only valid text is ever interned.
        std::str::from_utf8(self.0.get(id.0)).unwrap_or_default()
    }
}

/// All objects of one pickle. Ids given to these methods must come from the same pickle.
pub struct Objects {
    texts: Interner<u8>,
    /// Torch writes one empty text for each entry of a trace; they need not be looked up.
    empty_text: TextId,
    bytes: Interner<u8>,
    tuple_items: Vec<Value>,
    tuple_ends: Vec<usize>,
    /// Pairs of integers repeat a lot, one for each record, and have no identity to keep.
    integer_pairs: HashMap<(i64, i64), TupleId>,
    lists: Shelf<Value>,
    dicts: Shelf<(Value, Value)>,
}

impl Objects {
    pub(super) fn new(vocabulary: &[&str]) -> Objects {
        let mut objects = Objects {
            texts: Interner::new(),
            empty_text: TextId(0),
            bytes: Interner::new(),
            tuple_items: Vec::new(),
            tuple_ends: Vec::new(),
            integer_pairs: HashMap::new(),
            lists: Shelf::new(),
            dicts: Shelf::new(),
        };
        for word in vocabulary {
            let _ = objects.texts.intern(word.as_bytes());
        }
        objects.empty_text = objects.texts.intern(b"").map_or(TextId(0), TextId);
        objects
    }

    /// The text of this id.
    pub fn text(&self, id: TextId) -> &str {
        // Only valid text is ever interned.
        std::str::from_utf8(self.texts.get(id.0)).unwrap_or_default()
    }

    /// The id of a text, if the pickle holds it anywhere.
    pub fn text_id(&self, text: &str) -> Option<TextId> {
        self.texts.number_of(text.as_bytes()).map(TextId)
    }

    /// How many different texts there are; their ids are the numbers below this.
    pub fn text_count(&self) -> u32 {
        self.texts.len() as u32
    }

    /// The bytes of this id.
    pub fn bytes(&self, id: BytesId) -> &[u8] {
        self.bytes.get(id.0)
    }

    /// The items of a tuple.
    pub fn tuple(&self, id: TupleId) -> &[Value] {
        let index = id.0 as usize;
        let start = if index == 0 { 0 } else { self.tuple_ends[index - 1] };
        &self.tuple_items[start..self.tuple_ends[index]]
    }

    /// The items of a list or set.
    pub fn list(&self, id: ListId) -> Content<'_, Value> {
        self.lists.content(id.0)
    }

    /// The keys and values of a dictionary, in the order in which they were set. A key that was
    /// set twice stands here twice, and the later one counts.
    pub fn dict(&self, id: DictId) -> Content<'_, (Value, Value)> {
        self.dicts.content(id.0)
    }

    /// Replaces a finished list by a number and frees its items.
    pub fn replace_list(&mut self, id: ListId, token: u32) {
        self.lists.replace(id.0, token);
    }

    pub(super) fn replace_dict(&mut self, id: DictId, token: u32) {
        self.dicts.replace(id.0, token);
    }

    pub(super) fn add_list(&mut self) -> Result<ListId, ShelfError> {
        self.lists.add().map(ListId)
    }

    pub(super) fn add_dict(&mut self) -> Result<DictId, ShelfError> {
        self.dicts.add().map(DictId)
    }

    pub(super) fn extend_list(&mut self, id: ListId, items: &[Value]) -> Result<(), ShelfError> {
        self.lists.extend(id.0, items.iter().copied())
    }

    /// `pairs` is a key, its value, a key, and so on.
    pub(super) fn extend_dict(&mut self, id: DictId, pairs: &[Value]) -> Result<(), ShelfError> {
        self.dicts.extend(id.0, pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])))
    }

    pub(super) fn add_tuple(&mut self, items: &[Value]) -> Result<TupleId, ShelfError> {
        let id = TupleId(u32::try_from(self.tuple_ends.len()).map_err(|_| ShelfError::Full)?);
        if let [Value::Int(first), Value::Int(second)] = *items {
            let known = *self.integer_pairs.entry((first, second)).or_insert(id);
            if known != id {
                return Ok(known);
            }
        }
        self.tuple_items.extend_from_slice(items);
        self.tuple_ends.push(self.tuple_items.len());
        Ok(id)
    }

    /// Bytes that are not valid text are replaced, as in names of files on old disks.
    pub(crate) fn intern_text(&mut self, bytes: &[u8]) -> Result<TextId, ShelfError> {
        if bytes.is_empty() {
            return Ok(self.empty_text);
        }
        if let Some(number) = self.texts.number_of(bytes) {
            return Ok(TextId(number));
        }
        let number = match String::from_utf8_lossy(bytes) {
            Cow::Borrowed(text) => self.texts.intern(text.as_bytes()),
            Cow::Owned(text) => self.texts.intern(text.as_bytes()),
        };
        number.map(TextId).ok_or(ShelfError::Full)
    }

    pub(super) fn intern_bytes(&mut self, bytes: &[u8]) -> Result<BytesId, ShelfError> {
        self.bytes.intern(bytes).map(BytesId).ok_or(ShelfError::Full)
    }

    /// Keeps the texts and drops everything else.
    #[must_use]
    pub fn into_texts(self) -> Texts {
        Texts(self.texts)
    }

    /// About how much memory all of it takes.
    pub fn memory_bytes(&self) -> u64 {
        self.texts.memory_bytes()
            + self.bytes.memory_bytes()
            + self.lists.memory_bytes()
            + self.dicts.memory_bytes()
            + (self.tuple_items.capacity() * size_of::<Value>()
                + self.tuple_ends.capacity() * 8
                + self.integer_pairs.capacity() * 24) as u64
    }
}
