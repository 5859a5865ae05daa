//! Clients that keep their backends by a cookie: `sticky.cookie` of a pool. `crates/tls/src/sticky_key.rs` has the values,
//! `crates/logic/src/cookie.rs` the fields of a request. Nothing is remembered of a client.

use config::types::StickyCookie;
use logic::cookie;
use logic::http1::request::RequestHead;
use state::State;
use tls::sticky_key::{StickyKey, StickyValues};

/// What the cookie of a request says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slot {
    /// There is none.
    #[default]
    Absent,
    /// It names no backend of the pool: forged, of another key, or of a backend that has left.
    Unknown,
    /// The index of the backend that it names.
    Backend(usize),
}

/// A key file as it was read.
#[derive(Clone, Debug)]
pub struct CookieKey {
    key: Option<StickyKey>,
    fault: Option<String>,
}

/// The cookie of a pool.
#[derive(Debug)]
pub struct CookiePlan {
    name: Box<str>,
    key: CookieKey,
    values: StickyValues,
}

impl CookieKey {
    /// Reads the key of a pool. If that fails, the key of `before` stays.
    pub(crate) fn read(settings: &StickyCookie, before: Option<&CookiePlan>) -> Self {
        match StickyKey::read(&settings.key_file) {
            Ok(key) => Self { key: Some(key), fault: None },
            Err(error) => {
                let key = before.and_then(|before| before.key.key.clone());
                let meanwhile = match key {
                    Some(_) => "the key that was read before stays in use",
                    None => "clients keep no backends",
                };
                Self { key, fault: Some(format!("{error} ({meanwhile})")) }
            }
        }
    }
}

impl CookiePlan {
    pub(crate) fn new<'a>(
        settings: &StickyCookie,
        key: &CookieKey,
        backends: impl Iterator<Item = &'a str>,
    ) -> Self {
        let values = key.key.as_ref().map(|key| StickyValues::new(key, backends)).unwrap_or_default();
        Self { name: settings.name.clone(), key: key.clone(), values }
    }

    /// Reports why there is no key, or that there is one.
    pub(crate) fn announce(&self, subject: &str, state: &State) {
        match &self.key.fault {
            None => state.restore(subject),
            Some(fault) => state.degrade(subject, fault),
        }
    }

    /// Why there is no key of the file.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.key.fault.as_deref()
    }

    /// `Set-Cookie` for a client of this backend; `None` without a key.
    fn field(&self, backend: usize, secure: Secure) -> Option<String> {
        let value = self.values.of(backend)?;
        let secure = if secure == Secure::Yes { "; Secure" } else { "" };
        Some(format!("{}={value}; Path=/; HttpOnly; SameSite=Lax{secure}", self.name))
    }
}

/// Whether the client came over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secure {
    Yes,
    No,
}

/// Returns the backend that the cookie of a request names.
pub fn slot(plan: Option<&CookiePlan>, head: &[u8], request: &RequestHead) -> Slot {
    let Some(plan) = plan else { return Slot::Absent };
    let fields = request.headers.iter();
    let fields = fields.filter(|line| line.name.of(head).eq_ignore_ascii_case(b"cookie"));
    let mut values = cookie::values(fields.map(|line| line.value.of(head)), &plan.name).peekable();
    if values.peek().is_none() {
        return Slot::Absent;
    }
    values.find_map(|value| plan.values.find(value)).map_or(Slot::Unknown, Slot::Backend)
}

/// Takes the cookie out of a request head that goes to a backend.
pub(crate) fn strip(plan: Option<&CookiePlan>, head: &mut Vec<u8>) {
    if let Some(plan) = plan {
        cookie::strip(head, &plan.name);
    }
}

/// `Set-Cookie` for a client that came with `slot` and got `backend`; `None` if it has the right cookie.
pub(crate) fn to_set(
    plan: Option<&CookiePlan>,
    slot: Slot,
    backend: usize,
    secure: Secure,
) -> Option<String> {
    let plan = plan?;
    (slot != Slot::Backend(backend)).then(|| plan.field(backend, secure))?
}
