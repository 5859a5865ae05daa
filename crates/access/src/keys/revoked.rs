//! Records of keys that must not be believed any more: of revoked keys, and of hosts that are gone.

use std::collections::{BTreeMap, BTreeSet};

use super::openpgp;
use super::owner::Owner;
use super::record::{IPGP, Kind, PGP, Set};

/// Keys whose records must not be in the DNS, and names where they may be.
#[derive(Clone, Debug, Default)]
pub struct Revoked {
    /// Data of SSHFP records.
    sshfp: Set,
    /// Data of those that are good at a name all the same.
    good: BTreeMap<Owner, Set>,
    /// Fingerprints of OpenPGP keys, where they may not be. Of a key that has one user ID revoked the others stay.
    openpgp: BTreeMap<(Owner, Kind), Set>,
    /// Names of which no SSHFP record is believed.
    gone: BTreeSet<Owner>,
    places: BTreeSet<(Owner, Kind)>,
}

impl Revoked {
    /// Adds the data of an SSHFP record.
    pub fn add_sshfp(&mut self, algorithm: u8, hash: u8, fingerprint: &[u8]) {
        self.sshfp.insert([&[algorithm, hash], fingerprint].concat());
    }

    /// Adds the data of an SSHFP record that is good at a name: the key is revoked, but not for the host of that name.
    pub fn keep_sshfp(&mut self, owner: Owner, algorithm: u8, hash: u8, fingerprint: &[u8]) {
        self.good.entry(owner).or_default().insert([&[algorithm, hash], fingerprint].concat());
    }

    /// Adds the fingerprint of an OpenPGP key, at a name.
    pub fn add_openpgp(&mut self, owner: Owner, kind: Kind, fingerprint: &[u8]) {
        self.openpgp.entry((owner.clone(), kind)).or_default().insert(fingerprint.to_vec());
        self.add_place(owner, kind);
    }

    /// Adds a name at which a record of a revoked key may stand in the DNS.
    pub fn add_place(&mut self, owner: Owner, kind: Kind) {
        self.places.insert((owner, kind));
    }

    /// Adds the name of a host that is gone: all its SSHFP records have to go.
    pub fn add_gone(&mut self, owner: Owner) {
        self.gone.insert(owner.clone());
        self.add_place(owner, Kind::Sshfp);
    }

    /// Whether a host is gone.
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Names of hosts that are gone.
    pub fn gone(&self) -> impl Iterator<Item = &Owner> {
        self.gone.iter()
    }

    /// Leaves out the places outside of a zone.
    pub fn only_in(&mut self, zone: &Owner) {
        self.places.retain(|(owner, _)| owner.is_in(zone));
    }

    /// Names and record types at which a record of a revoked key may stand in the DNS.
    pub fn places(&self) -> impl Iterator<Item = &(Owner, Kind)> {
        self.places.iter()
    }

    /// Those of the records of a name and type that have to go.
    pub fn among(&self, owner: &Owner, kind: Kind, data: &Set) -> Set {
        let none = Set::new();
        let keys = self.openpgp.get(&(owner.clone(), kind)).unwrap_or(&none);
        let has = |data: &&Vec<u8>| match kind {
            Kind::Sshfp if self.gone.contains(owner) => true,
            Kind::Sshfp => {
                self.sshfp.contains(*data) && self.good.get(owner).is_none_or(|good| !good.contains(*data))
            }
            Kind::Openpgpkey | Kind::Cert if keys.is_empty() => false,
            Kind::Openpgpkey => is_of(keys, data),
            Kind::Cert => match &data[..] {
                [a, b, _, _, _, key @ ..] if u16::from_be_bytes([*a, *b]) == PGP => is_of(keys, key),
                [a, b, _, _, _, length, rest @ ..] if u16::from_be_bytes([*a, *b]) == IPGP => {
                    rest.get(..usize::from(*length)).is_some_and(|own| keys.contains(own))
                }
                _ => false,
            },
            Kind::Tlsa => false,
        };
        data.iter().filter(has).cloned().collect()
    }
}

fn is_of(fingerprints: &Set, key: &[u8]) -> bool {
    openpgp::read(key).is_ok_and(|keys| keys.iter().any(|key| fingerprints.contains(key.fingerprint())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Record;

    #[test]
    fn only_records_of_revoked_keys_and_of_hosts_that_are_gone_have_to_go() {
        let (here, gone) = (Owner::parse("a.example").unwrap(), Owner::parse("b.example").unwrap());
        let mut revoked = Revoked::default();
        revoked.add_sshfp(4, 2, &[7; 32]);
        revoked.add_gone(gone.clone());
        revoked.add_openpgp(here.clone(), Kind::Cert, &[9; 20]);
        let data = Set::from([[&[4, 2], &[7; 32][..]].concat(), [&[4, 2], &[8; 32][..]].concat()]);
        assert_eq!(revoked.among(&here, Kind::Sshfp, &data).len(), 1);
        assert_eq!(revoked.among(&gone, Kind::Sshfp, &data).len(), 2);
        assert_eq!(revoked.among(&here, Kind::Tlsa, &data), Set::new());
        revoked.keep_sshfp(here.clone(), 4, 2, &[7; 32]);
        assert_eq!(revoked.among(&here, Kind::Sshfp, &data), Set::new(), "it is good at this name");
        let other = Owner::parse("c.example").unwrap();
        assert_eq!(revoked.among(&other, Kind::Sshfp, &data).len(), 1);
        let ipgp = |byte| Record::cert_ipgp(here.clone(), &[byte; 20], "https://a.example/k").unwrap().data;
        let data = Set::from([ipgp(9), ipgp(8), vec![0, 6, 0, 0, 0, 20, 9], vec![0, 3, 0, 0, 0, 1], vec![]]);
        assert_eq!(revoked.among(&here, Kind::Cert, &data), Set::from([ipgp(9)]));
        assert_eq!(revoked.among(&gone, Kind::Cert, &data), Set::new(), "another address");
    }
}
