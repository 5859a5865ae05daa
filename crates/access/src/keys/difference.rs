//! What an update of a zone changes: only the difference, and only records of the names and types that are ours.

use super::owner::Owner;
use super::record::{Kind, Set};

/// Records of a name and type as a server has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresentSet {
    pub data: Set,
    /// `None` if there are none.
    pub ttl: Option<u32>,
}

/// What happens to records of the same name and type that are not wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Others {
    /// The keys that they speak for are not used any more.
    Remove,
    /// Their keys are still in use, or belong to other machines.
    Keep,
    /// The keys of these are not used any more; those of others are, or belong to other machines.
    RemoveThese(Set),
}

impl Others {
    /// Whether a record that is not wanted goes.
    fn goes(&self, kind: Kind, data: &[u8]) -> bool {
        match self {
            Self::Remove => kind.is_ours(data),
            Self::Keep => false,
            Self::RemoveThese(these) => these.contains(data),
        }
    }
}

/// A change of the records of one name and type. `before` is what the server must still have, so that a change by
/// another program in between is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub owner: Owner,
    pub kind: Kind,
    pub before: Set,
    pub remove: Set,
    pub add: Set,
    pub ttl: u32,
}

impl Change {
    /// The records after the change.
    pub fn after(&self) -> Set {
        self.before.difference(&self.remove).chain(&self.add).cloned().collect()
    }
}

/// TTL of new records where none is asked for, in seconds.
const USUAL_TTL: u32 = 3600;

/// Compares what is wanted with what is there. `None` if nothing is to be changed. Records of one name and type have one
/// TTL (RFC 2181 section 5.2): the present one stays unless `ttl` asks for another.
pub fn difference(
    (owner, kind): (&Owner, Kind),
    wanted: &Set,
    present: &PresentSet,
    others: &Others,
    ttl: Option<u32>,
) -> Option<Change> {
    let is_unwanted = |data: &&Vec<u8>| !wanted.contains(*data) && others.goes(kind, data);
    let mut remove: Set = present.data.iter().filter(is_unwanted).cloned().collect();
    let mut add: Set = wanted.difference(&present.data).cloned().collect();
    let new_ttl = ttl.or(present.ttl).unwrap_or(USUAL_TTL);
    if !present.data.is_empty() && present.ttl != Some(new_ttl) {
        // A record is added anew with its new TTL. Those of the same set that are not ours get it too.
        add = present.data.difference(&remove).chain(wanted).cloned().collect();
        remove = present.data.clone();
    }
    if add.is_empty() && remove.is_empty() {
        return None;
    }
    Some(Change { owner: owner.clone(), kind, before: present.data.clone(), remove, add, ttl: new_ttl })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(data: &[u8]) -> Set {
        data.iter().map(|byte| vec![*byte]).collect()
    }

    fn change(wanted: &[u8], present: &[u8], others: Others, ttl: Option<u32>) -> Option<(Set, Set, u32)> {
        let owner = Owner::parse("a.example").unwrap();
        let present = PresentSet { data: set(present), ttl: (!present.is_empty()).then_some(60) };
        let change = difference((&owner, Kind::Tlsa), &set(wanted), &present, &others, ttl)?;
        assert!(change.after().is_superset(&set(wanted)), "{change:?}");
        Some((change.remove, change.add, change.ttl))
    }

    #[test]
    fn only_what_differs_is_changed() {
        assert_eq!(change(&[1, 2], &[1, 2], Others::Remove, None), None);
        assert_eq!(change(&[1, 2], &[1, 3], Others::Remove, None), Some((set(&[3]), set(&[2]), 60)));
        assert_eq!(change(&[1, 2], &[1, 3], Others::Keep, None), Some((set(&[]), set(&[2]), 60)));
        assert_eq!(change(&[1], &[1, 3], Others::Keep, None), None);
        let these = Others::RemoveThese(set(&[1, 3]));
        assert_eq!(change(&[1], &[1, 2, 3], these, None), Some((set(&[3]), set(&[]), 60)));
        assert_eq!(change(&[1], &[], Others::Remove, None), Some((set(&[]), set(&[1]), USUAL_TTL)));
        assert_eq!(change(&[1], &[], Others::Remove, Some(5)), Some((set(&[]), set(&[1]), 5)));
    }

    #[test]
    fn another_ttl_is_a_difference_of_all_records() {
        assert_eq!(change(&[1], &[1], Others::Remove, Some(60)), None);
        assert_eq!(change(&[1], &[1], Others::Remove, Some(5)), Some((set(&[1]), set(&[1]), 5)));
        assert_eq!(change(&[1], &[1, 2], Others::Keep, Some(5)), Some((set(&[1, 2]), set(&[1, 2]), 5)));
    }

    #[test]
    fn certificates_of_others_stay() {
        let owner = Owner::parse("a.example").unwrap();
        let (pgp, x509) = (vec![0, 3, 0, 0, 0, 1], vec![0, 1, 0, 0, 0, 1]);
        let present = PresentSet { data: Set::from([pgp.clone(), x509.clone()]), ttl: Some(60) };
        let wanted = Set::from([vec![0, 3, 0, 0, 0, 2]]);
        let change = difference((&owner, Kind::Cert), &wanted, &present, &Others::Remove, None).unwrap();
        assert_eq!((change.remove.clone(), change.before.len()), (Set::from([pgp]), 2));
        assert!(change.after().contains(&x509));
    }
}
