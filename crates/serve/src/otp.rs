//! One-time passwords in a running server: the store that the configuration names, and those who ask it.
//!
//! - `crates/serve/src/otp/tokens.rs`: the store, opened in the background
//! - `crates/serve/src/otp/verifier.rs`: the validation server of listeners
//! - `crates/serve/src/otp/peers.rs`: other validation servers
//! - `crates/serve/src/otp/judge.rs`: what the store says of what a user typed
//! - `crates/serve/src/otp/challenge.rs`: keys at this machine that respond to challenges
//! - `crates/serve/src/otp/socket.rs`: the socket of PAM modules
//! - `crates/serve/src/otp/passwords.rs`: passwords that are asked there
//! - `crates/serve/src/otp/refusals.rs`: why an OTP was refused, in the log
//!
//! `crates/access/src/otp/validation.rs` has the protocol, `crates/access/src/otp/ledger.rs` the decisions, and
//! `crates/credentials/src/group_commit.rs` the thread that makes them durable before a client is answered.

mod challenge;
mod judge;
mod passwords;
mod peers;
mod refusals;
mod socket;
mod tokens;
mod verifier;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::Config;
use config::types;
use credentials::Place;
use state::State;
use state::lock::lock;
use state::validation::Validation;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use challenge::Keys;
use passwords::Passwords;
use peers::Peers;
use refusals::Refusals;
use socket::{AuthSocket, Judges, SOCKET};
use tokens::{SUBJECT, Tokens};
use verifier::Verifier;

use crate::logins::Logins;

/// Time that a start and a reload wait for the store. What is not open then is told as degraded, and opened in the background.
pub const START_LIMIT: Duration = Duration::from_secs(10);
pub const RELOAD_LIMIT: Duration = Duration::from_millis(500);

/// Opens and closes the store as the configuration says.
pub struct Doors {
    state: Arc<State>,
    served: Mutex<Option<Served>>,
    passwords: Arc<Passwords>,
}

/// What is served.
struct Served {
    settings: types::Otp,
    tokens: Arc<Tokens>,
    opening: Option<JoinHandle<()>>,
    socket: Option<AuthSocket>,
}

/// When the store is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    Now,
    Later,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(opening) = &self.opening {
            opening.abort();
        }
    }
}

impl Doors {
    pub fn new(state: Arc<State>, logins: Arc<Logins>) -> Self {
        Self { state, served: Mutex::new(None), passwords: Arc::new(Passwords::new(logins)) }
    }

    /// Follows a configuration. It does not wait for the disk: until the store is open, every question gets a refusal.
    pub fn follow(&self, config: &Config) {
        self.serve(config, Opening::Now);
    }

    /// Refuses every question until [`Doors::follow`] is called: the old process of an upgrade has the store and the socket.
    pub fn refuse(&self, config: &Config) {
        self.serve(config, Opening::Later);
    }

    fn serve(&self, config: &Config, opening: Opening) {
        let mut served = lock(&self.served);
        let Some(otp) = &config.otp else {
            *served = None;
            self.state.validation.store(None);
            self.state.forget_degraded(|subject| subject == SUBJECT || subject.starts_with("otp."));
            return;
        };
        let place = Place { directory: otp.store.clone(), key_file: otp.key_file.clone() };
        let open = served.as_ref().filter(|served| served.tokens.is_open() && served.tokens.place == place);
        if open.is_some_and(|served| served.settings == *otp) {
            return;
        }
        // A store that is open stays so. One that is not is tried again at once.
        let (tokens, task) = match open {
            Some(served) => (served.tokens.clone(), None),
            None => {
                let tokens = Arc::new(Tokens::new(place, self.state.clone()));
                let task = (opening == Opening::Now).then(|| tokio::spawn(tokens.clone().open()));
                (tokens, task)
            }
        };
        // The old one gives its socket back first.
        *served = None;
        self.state.forget_degraded(|subject| subject.starts_with("otp."));
        let peers = Arc::new(Peers::start(&otp.validators, &tokens, &self.state));
        let judges = Judges {
            tokens: tokens.clone(),
            keys: Keys::new(tokens.clone()),
            peers: peers.clone(),
            refusals: Refusals::default(),
            passwords: self.passwords.clone(),
            settings: otp.clone(),
            state: self.state.clone(),
        };
        let path = otp.auth_socket.as_deref().filter(|_| opening == Opening::Now);
        let socket = path.map(|path| AuthSocket::start(path, judges)).transpose();
        let socket = socket.unwrap_or_else(|error| {
            self.state.degrade(SOCKET, &format!("no PAM module can ask: {error}"));
            None
        });
        // Lines of their own: those who send wrong OTPs over the network hide no log-in.
        let refusals = Arc::new(Refusals::default());
        let validator = Arc::new(Verifier {
            tokens: tokens.clone(),
            peers,
            refusals,
            passwords: self.passwords.clone(),
            settings: otp.clone(),
            runtime: Handle::current(),
        });
        let listeners = otp.answering.clone();
        self.state.validation.store(Some(Arc::new(Validation { listeners, validator })));
        *served = Some(Served { settings: otp.clone(), tokens, opening: task, socket });
    }

    /// Gives store and socket to another process. Questions of connections that stay here get a refusal.
    pub fn close(&self) {
        if let Some(served) = &mut *lock(&self.served) {
            served.opening.take().inspect(JoinHandle::abort);
            served.socket = None;
            served.tokens.close();
        }
    }

    /// Waits until the store is open or has failed to open once, at most for a time: then it is told as degraded, and opened in
    /// the background.
    pub async fn opened(&self, limit: Duration) {
        let tokens = lock(&self.served).as_ref().map(|served| served.tokens.clone());
        if let Some(tokens) = tokens {
            tokens.tried(limit).await;
        }
    }
}
