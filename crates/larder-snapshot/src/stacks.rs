//! Call stacks, and the frames that they are made of, each kept once.

use std::collections::HashMap;
use std::num::NonZeroU32;

use super::entry::{Frame, StackId};
use crate::pickle::Interner;

/// All frames and all stacks of a snapshot.
pub(super) struct Stacks {
    frames: Vec<Frame>,
    numbers: HashMap<Frame, u32>,
    lists: Interner<u32>,
}

impl Stacks {
    pub(super) fn new() -> Stacks {
        Stacks { frames: Vec::new(), numbers: HashMap::new(), lists: Interner::new() }
    }

    /// The number of a frame.
    pub(super) fn add_frame(&mut self, frame: Frame) -> u32 {
        let number = *self.numbers.entry(frame).or_insert(self.frames.len() as u32);
        if number as usize == self.frames.len() {
            self.frames.push(frame);
        }
        number
    }

    /// The call stack of these frames.
    pub(super) fn add(&mut self, frames: &[u32]) -> Option<StackId> {
        let number = self.intern(frames)?;
        NonZeroU32::new(number + 1).map(StackId)
    }

    /// The number of the stack of these frames.
    pub(super) fn intern(&mut self, frames: &[u32]) -> Option<u32> {
        self.lists.intern(frames)
    }

    pub(super) fn frame(&self, number: u32) -> Frame {
        self.frames[number as usize]
    }

    /// The frames of a stack, by their numbers.
    pub(super) fn frames_of(&self, number: u32) -> &[u32] {
        self.lists.get(number)
    }

    /// What they take of the host's memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        let frames = self.frames.capacity() * size_of::<Frame>() + self.numbers.capacity() * 20;
        frames as u64 + self.lists.memory_bytes()
    }

    /// The frames, and the stacks of them.
    pub(super) fn into_parts(self) -> (Vec<Frame>, Interner<u32>) {
        (self.frames, self.lists)
    }
}
