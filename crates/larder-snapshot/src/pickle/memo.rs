//! Memo: the objects that a pickle may mention again, by the number it gave them.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::value::{BytesId, DictId, ListId, TextId, TupleId, Value};

/// A value in eight bytes. Python memoises only what has parts; other values go to a side table.
#[derive(Clone, Copy)]
enum Memoised {
    Text(TextId),
    Bytes(BytesId),
    Tuple(TupleId),
    List(ListId),
    Set(ListId),
    Dict(DictId),
    Loose(u32),
}

/// Every pickler numbers its objects upwards from 0, so they lie in a vector. A number out of
/// order goes to a map: a large number in the file must not become a large vector.
#[derive(Default)]
pub(super) struct Memo {
    dense: Vec<Memoised>,
    sparse: HashMap<u32, Memoised>,
    loose: Vec<Value>,
}

impl Memo {
    /// Gives the value the next number, as the opcode MEMOIZE does.
    #[inline]
    pub(super) fn push(&mut self, value: Value) {
        if self.sparse.is_empty() {
            let memoised = self.pack(value);
            self.dense.push(memoised);
        } else {
            self.put((self.dense.len() + self.sparse.len()) as u32, value);
        }
    }

    pub(super) fn put(&mut self, number: u32, value: Value) {
        let memoised = self.pack(value);
        let index = number as usize;
        match index.cmp(&self.dense.len()) {
            Ordering::Less => self.dense[index] = memoised,
            Ordering::Equal => {
                self.sparse.remove(&number);
                self.dense.push(memoised);
            }
            Ordering::Greater => {
                self.sparse.insert(number, memoised);
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<Value> {
        let memoised = match self.dense.get(number as usize) {
            Some(memoised) => memoised,
            None => self.sparse.get(&number)?,
        };
        Some(match *memoised {
            Memoised::Text(id) => Value::Text(id),
            Memoised::Bytes(id) => Value::Bytes(id),
            Memoised::Tuple(id) => Value::Tuple(id),
            Memoised::List(id) => Value::List(id),
            Memoised::Set(id) => Value::Set(id),
            Memoised::Dict(id) => Value::Dict(id),
            Memoised::Loose(index) => self.loose[index as usize],
        })
    }

    #[inline]
    fn pack(&mut self, value: Value) -> Memoised {
        match value {
            Value::Text(id) => Memoised::Text(id),
            Value::Bytes(id) => Memoised::Bytes(id),
            Value::Tuple(id) => Memoised::Tuple(id),
            Value::List(id) => Memoised::List(id),
            Value::Set(id) => Memoised::Set(id),
            Value::Dict(id) => Memoised::Dict(id),
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                self.loose.push(value);
                Memoised::Loose((self.loose.len() - 1) as u32)
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.dense.capacity() * size_of::<Memoised>()
            + self.sparse.capacity() * 16
            + self.loose.capacity() * size_of::<Value>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_number_costs_no_more_than_a_small_one() {
        assert_eq!(size_of::<Memoised>(), 8);
        let mut memo = Memo::default();
        memo.put(u32::MAX, Value::Int(7));
        memo.put(0, Value::None);
        assert_eq!(memo.get(u32::MAX), Some(Value::Int(7)));
        assert_eq!(memo.get(0), Some(Value::None));
        assert_eq!(memo.get(1), None);
        // Python counts what is there: two objects, so the next number is 2.
        memo.push(Value::Bool(true));
        assert_eq!(memo.get(2), Some(Value::Bool(true)));
        memo.put(1, Value::Int(1));
        memo.put(2, Value::Int(2));
        assert_eq!(memo.get(2), Some(Value::Int(2)));
        assert!(memo.memory_bytes() < 1000);
    }
}
