//! Weights and priorities of SRV records (RFC 2782) as those of backends.

/// Largest weight of a backend.
pub const MOST_WEIGHT: u32 = 1000;

/// Largest priority number of a backend.
const MOST_PRIORITY: u32 = 1000;

/// An SRV record, without the name that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    pub priority: u16,
    pub weight: u16,
    pub port: u16,
    pub target: Box<str>,
}

/// Share and priority of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    pub weight: u32,
    pub priority: u32,
}

impl Rank {
    /// The rank of every address of a name without SRV records.
    pub const EQUAL: Self = Self { weight: 1, priority: 0 };

    /// The rank of a member of an entry that has a weight and a priority itself.
    #[must_use]
    pub fn within(self, entry: Self) -> Self {
        let weight = match entry.weight {
            0 => 0,
            factor => (self.weight * factor).clamp(1, MOST_WEIGHT),
        };
        Self { weight, priority: (self.priority + entry.priority).min(MOST_PRIORITY) }
    }
}

/// Returns the rank of each record: priorities are counted from 0 without gaps, and weights keep their proportions.
///
/// A record of weight 0 beside others "should have a very small chance of being selected" (RFC 2782), so it gets 1 and
/// the others as much as possible; if all have 0, they are equal.
pub fn ranks(records: &[Service]) -> Vec<Rank> {
    let mut priorities: Vec<u16> = records.iter().map(|record| record.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    let rank = |record: &Service| {
        let place = priorities.partition_point(|priority| *priority < record.priority);
        let priority = u32::try_from(place).unwrap_or(MOST_PRIORITY).min(MOST_PRIORITY);
        let equals = || records.iter().filter(|other| other.priority == record.priority);
        let most = equals().map(|other| u32::from(other.weight)).max().unwrap_or_default();
        let has_zero = equals().any(|other| other.weight == 0);
        let weight = match u32::from(record.weight) {
            _ if most == 0 => 1,
            weight if most <= MOST_WEIGHT && !has_zero => weight,
            weight => (weight * MOST_WEIGHT / most).max(1),
        };
        Rank { weight, priority }
    };
    records.iter().map(rank).collect()
}
