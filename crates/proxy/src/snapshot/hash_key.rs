//! Key of the hash of a `dsr` listener, from its file.

use config::types::DsrSettings;
use state::State;
use tls::sticky_key::StickyKey;

use super::ListenerPlan;

/// A key file as it was read.
#[derive(Clone, Debug)]
pub struct HashKey {
    pub(super) key: Option<[u64; 2]>,
    fault: Option<String>,
}

impl HashKey {
    /// Reads the key of a listener. `None` if it has no file. If that fails, the key of `before` stays.
    pub(super) fn read(settings: &DsrSettings, before: Option<&ListenerPlan>) -> Option<Self> {
        Some(match StickyKey::read(settings.hash_key_file.as_deref()?) {
            Ok(key) => Self { key: Some(key.of_hash()), fault: None },
            Err(error) => {
                let key = before.and_then(|before| before.hash_key.as_ref()?.key);
                let meanwhile = match key {
                    Some(_) => "the key that was read before stays in use",
                    None => "another node gives flows to other backends",
                };
                Self { key, fault: Some(format!("{error} ({meanwhile})")) }
            }
        })
    }

    /// Reports why there is no key, or that there is one.
    pub(super) fn announce(&self, listener: &str, state: &State) {
        let subject = format!("listener.{listener}.hash-key-file");
        match &self.fault {
            None => state.restore(&subject),
            Some(fault) => state.degrade(&subject, fault),
        }
    }

    /// Why the file cannot be used.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    pub(crate) fn get(&self) -> Option<[u64; 2]> {
        self.key
    }
}
