//! Torch: a snapshot as the pickle that PyTorch's own tools read.

use std::collections::HashMap;
use std::io::{self, Write};

use super::Snapshot;
use super::emit::{self, Emitter};
use crate::pickle::{Open, Writer};

/// Writes torch's dictionary as a pickle. Call stacks that are shared stay shared.
struct Pickler<W> {
    writer: Writer<W>,
    open: Vec<Open>,
    stacks: HashMap<u32, u32>,
}

impl Snapshot {
    /// Writes what `torch.cuda.memory._dump_snapshot()` would write: a pickle of protocol 4.
    pub fn write_pickle(&self, out: impl Write) -> io::Result<()> {
        let mut pickler =
            Pickler { writer: Writer::new(out)?, open: Vec::new(), stacks: HashMap::new() };
        emit::snapshot(self, &mut pickler)?;
        pickler.writer.finish()?.flush()
    }
}

impl<W: Write> Pickler<W> {
    fn last(&mut self) -> Open {
        self.open.pop().expect("every container that ends was begun")
    }
}

impl<W: Write> Emitter for Pickler<W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        let open = self.writer.begin_dict()?;
        self.open.push(open);
        Ok(())
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        let mut open = self.last();
        self.writer.key(&mut open, key)?;
        self.open.push(open);
        Ok(())
    }

    fn end_dict(&mut self) -> io::Result<()> {
        let open = self.last();
        self.writer.end_dict(&open)
    }

    fn begin_list(&mut self) -> io::Result<()> {
        let open = self.writer.begin_list()?;
        self.open.push(open);
        Ok(())
    }

    fn item(&mut self) -> io::Result<()> {
        let mut open = self.last();
        self.writer.item(&mut open)?;
        self.open.push(open);
        Ok(())
    }

    fn end_list(&mut self) -> io::Result<()> {
        let open = self.last();
        self.writer.end_list(&open)
    }

    fn none(&mut self) -> io::Result<()> {
        self.writer.none()
    }

    fn boolean(&mut self, is: bool) -> io::Result<()> {
        self.writer.boolean(is)
    }

    fn integer(&mut self, number: i64) -> io::Result<()> {
        self.writer.integer(number)
    }

    fn float(&mut self, number: f64) -> io::Result<()> {
        self.writer.float(number)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.writer.text(text)
    }

    fn pool(&mut self, pool: (u64, u64)) -> io::Result<()> {
        self.writer.pair(pool.0 as i64, pool.1 as i64)
    }

    fn is_repeated(&mut self, number: u32) -> io::Result<bool> {
        let memo = self.stacks.get(&number).copied();
        memo.map_or(Ok(false), |memo| self.writer.recall(memo).map(|()| true))
    }

    fn may_repeat(&mut self, number: u32) -> io::Result<()> {
        let memo = self.writer.memoize()?;
        self.stacks.insert(number, memo);
        Ok(())
    }
}
