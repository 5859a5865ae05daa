//! How many descriptors one purpose beside traffic may use: fewer or more after a reload, but never more than there are at any moment.

/// The descriptors of one purpose. What a reload takes away may be in use: it goes when it comes back. What a reload adds may be held
/// by traffic: it comes when traffic has given it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    target: usize,
    /// In use, or free for use.
    granted: usize,
}

impl Allowance {
    /// So many, all of them free.
    pub const fn new(count: usize) -> Self {
        Self { target: count, granted: count }
    }

    /// How many there are to be from now on.
    pub fn set(&mut self, target: usize) {
        self.target = target;
    }

    /// How many there are to be.
    pub fn target(&self) -> usize {
        self.target
    }

    /// How many more there are than there are to be: traffic cannot have these yet.
    pub fn surplus(&self) -> usize {
        self.granted.saturating_sub(self.target)
    }

    /// How many are missing.
    pub fn missing(&self) -> usize {
        self.target.saturating_sub(self.granted)
    }

    /// `count` are not in use any more: gives how many of these go.
    #[must_use]
    pub fn take_away(&mut self, count: usize) -> usize {
        let gone = count.min(self.surplus());
        self.granted -= gone;
        gone
    }

    /// `room` descriptors are not held by traffic: gives how many are added of these, and at any rate as many as make `least`,
    /// without which nothing could be done at all.
    #[must_use]
    pub fn add(&mut self, room: usize, least: usize) -> usize {
        let more = self.missing().min(room.max(least.saturating_sub(self.granted)));
        self.granted += more;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_goes_as_it_comes_back() {
        let mut allowance = Allowance::new(10);
        allowance.set(4);
        assert_eq!((allowance.take_away(1), allowance.surplus()), (1, 5));
        assert_eq!((allowance.take_away(7), allowance.surplus()), (5, 0));
        assert_eq!((allowance.take_away(1), allowance.add(9, 1)), (0, 0));
    }

    #[test]
    fn what_is_added_comes_as_there_is_room_and_the_least_at_once() {
        let mut allowance = Allowance::new(0);
        allowance.set(10);
        assert_eq!(allowance.add(0, 2), 2);
        assert_eq!(allowance.add(0, 2), 0);
        assert_eq!((allowance.add(5, 2), allowance.missing()), (5, 3));
        assert_eq!((allowance.add(5, 2), allowance.missing()), (3, 0));
    }

    #[test]
    fn what_was_to_go_stays_where_the_next_reload_wants_it() {
        let mut allowance = Allowance::new(10);
        allowance.set(2);
        assert_eq!(allowance.take_away(3), 3);
        allowance.set(8);
        assert_eq!((allowance.surplus(), allowance.missing()), (0, 1));
    }
}
