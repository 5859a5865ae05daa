//! Number of descriptors that one purpose other than client traffic may use. A reload changes it; the sum over all
//! purposes and traffic never exceeds the total.

/// Descriptors of one purpose. When a reload lowers the number, a descriptor in use is returned only when it is closed.
/// When a reload raises it, a descriptor that traffic holds is added only when traffic releases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    target: usize,
    /// Used and unused descriptors of this purpose.
    granted: usize,
}

impl Allowance {
    pub const fn new(count: usize) -> Self {
        Self { target: count, granted: count }
    }

    /// Sets the wanted number of descriptors.
    pub fn set(&mut self, target: usize) {
        self.target = target;
    }

    /// Wanted number of descriptors.
    pub fn target(&self) -> usize {
        self.target
    }

    /// Descriptors above the wanted number, which traffic cannot have yet.
    pub fn surplus(&self) -> usize {
        self.granted.saturating_sub(self.target)
    }

    pub fn missing(&self) -> usize {
        self.target.saturating_sub(self.granted)
    }

    /// Removes up to `count` unused descriptors above the wanted number. Returns how many it removed.
    #[must_use]
    pub fn take_away(&mut self, count: usize) -> usize {
        let gone = count.min(self.surplus());
        self.granted -= gone;
        gone
    }

    /// Adds missing descriptors from the `room` that traffic does not hold. It adds up to `least` even without room,
    /// because the purpose cannot work with fewer. Returns how many it added.
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
