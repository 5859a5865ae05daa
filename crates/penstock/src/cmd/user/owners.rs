//! The owners of SSH keys, from the file of users.

use std::collections::BTreeMap;

use access::users::{Account, SshKey, User, Users};
use hosts::authorized::audit::{Registry, Right};
use hosts::ssh::key::{Fingerprint, PublicKey};

use crate::output::Failure;

pub(super) struct Owners {
    of: BTreeMap<Fingerprint, Vec<String>>,
    users: Users,
}

impl Owners {
    pub(super) fn of(users: &Users) -> Result<Self, Failure> {
        let mut of: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for user in users.iter() {
            for key in keys(user)? {
                of.entry(key.fingerprint()).or_default().push(user.name.clone());
            }
        }
        Ok(Self { of, users: users.clone() })
    }

    /// Names of those who own a key; several, if they share it.
    pub(super) fn find(&self, key: &Fingerprint) -> &[String] {
        self.of.get(key).map_or(&[], Vec::as_slice)
    }
}

impl Registry for Owners {
    fn owners(&self, key: &Fingerprint) -> &[String] {
        self.find(key)
    }

    fn revoked(&self, owner: &str) -> Option<&str> {
        self.users.find(owner)?.revoked.as_deref()
    }

    fn right(&self, owner: &str, account: &str, host: &str) -> Right {
        let accounts = self.users.find(owner).map_or(&[][..], |user| &user.accounts);
        match accounts {
            [] => Right::Unsaid,
            all if all.iter().any(|one| one.is(account, host)) => Right::Named,
            all => Right::Others(all.iter().map(Account::to_string).collect::<Vec<_>>().join(", ")),
        }
    }

    fn is_owner(&self, name: &str) -> bool {
        self.users.find(name).is_some_and(|user| !user.ssh_keys.is_empty())
    }
}

/// The keys of a user.
pub(super) fn keys(user: &User) -> Result<Vec<PublicKey>, Failure> {
    user.ssh_keys.iter().map(|key| public(user, key)).collect()
}

fn public(user: &User, key: &SshKey) -> Result<PublicKey, Failure> {
    PublicKey::from_blob(key.blob()).map_err(|error| {
        let begins: String = key.to_string().chars().take(40).collect();
        Failure::usage(format_args!("the file of users: ssh-key={begins}... of {}: {error}", user.name))
    })
}
