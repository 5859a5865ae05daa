//! Doubly linked lists of numbers, each number in one list at most: every step takes constant time and no memory.

const NONE: u32 = u32::MAX;

/// One list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    first: u32,
    last: u32,
    len: usize,
}

impl Default for Chain {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl Chain {
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Links of the numbers in all lists of one kind.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Links {
    /// Adds a number that is in no list at the end.
    pub(crate) fn append(&mut self, chain: &mut Chain, number: u32) {
        let at = number as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, Link { before: NONE, after: NONE });
        }
        self.0[at] = Link { before: chain.last, after: NONE };
        match chain.last {
            NONE => chain.first = number,
            last => self.0[last as usize].after = number,
        }
        chain.last = number;
        chain.len += 1;
    }

    /// Removes a number that is in this list.
    pub(crate) fn remove(&mut self, chain: &mut Chain, number: u32) {
        let Link { before, after } = self.0[number as usize];
        match before {
            NONE => chain.first = after,
            before => self.0[before as usize].after = after,
        }
        match after {
            NONE => chain.last = before,
            after => self.0[after as usize].before = before,
        }
        chain.len -= 1;
    }
}
