/// Maximum number of clients of the control socket or the admin listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub slots: usize,
    /// Part of `slots`: maximum number of clients that follow events.
    pub following: usize,
}

impl Size {
    /// Maximum number of connections that have lost their slot and are not closed yet.
    pub const fn ending(self) -> usize {
        self.slots.div_ceil(ENDING_OF)
    }

    /// Maximum number of open descriptors: clients with a slot, clients that have lost it, and one that waits for a
    /// slot.
    pub const fn descriptors(self) -> usize {
        self.slots + self.ending() + 1
    }

    /// Reduces the numbers to fit into `descriptors`.
    pub fn within(self, descriptors: usize) -> Self {
        let slots = descriptors.saturating_sub(1) * ENDING_OF / (ENDING_OF + 1);
        let slots = slots.clamp(1, self.slots);
        Self { slots, following: self.following * slots / self.slots }
    }
}

/// One connection that has lost its slot and is not closed yet is allowed per 8 slots.
const ENDING_OF: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { slots: 64, following: 56 };

    #[test]
    fn places_fit_the_descriptors_that_there_are() {
        assert_eq!(SIZE.within(SIZE.descriptors()), SIZE);
        assert_eq!(SIZE.within(1000), SIZE);
        assert_eq!(SIZE.within(0), Size { slots: 1, following: 0 });
        for descriptors in 3..100 {
            let size = SIZE.within(descriptors);
            assert!(size.descriptors() <= descriptors, "{descriptors}: {size:?}");
            assert!(size.following < size.slots, "{size:?}");
        }
    }
}
