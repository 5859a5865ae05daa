//! Texts made at random from a seed: a case that fails can be made again.

pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `sides` (splitmix64).
    pub(crate) fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap()
    }

    pub(crate) fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// One of `usual`, and one time of `rarely` one of `odd`.
    pub(crate) fn mostly<'a>(&mut self, usual: &[&'a str], odd: &[&'a str], rarely: usize) -> &'a str {
        if self.below(rarely) == 0 { self.of(odd) } else { self.of(usual) }
    }
}
