//! Control over the network.

use std::path::PathBuf;
use std::time::Duration;

use access::Mechanism;
use access::policy::{Policy, Subject};

use super::bind_address::BindAddress;
use super::tls::TlsSettings;

/// `listen` of `[control]`, with all that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteControl {
    pub listen: BindAddress,
    pub tls: TlsSettings,
    /// When TLS begins.
    pub start: TlsStart,
    /// File of users; `None`: no operator logs in with a password.
    pub users: Option<PathBuf>,
    /// Kerberos; `None`: no operator logs in with a ticket.
    pub kerberos: Option<Kerberos>,
    /// Mechanisms that may be used if the rest of the configuration makes them possible.
    pub mechanisms: Vec<Mechanism>,
    /// Who may do what, beside what the file of users says.
    pub policy: Policy,
    /// Whether a one-time password is needed for changes; `None`: never.
    pub step_up: Option<StepUp>,
}

/// `step-up`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepUp {
    /// Time for which one password is enough, for a user at an address.
    pub lasts: Duration,
    /// Who needs none.
    pub except: Vec<Subject>,
}

/// The service as which Kerberos knows this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kerberos {
    /// `None`: the keytab of the system.
    pub keytab: Option<PathBuf>,
    pub service: String,
    /// `None`: the name of this machine.
    pub host: Option<String>,
}

/// When a connection begins TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsStart {
    /// Before anything else.
    Implicit,
    /// By the command `STARTTLS`, before any log-in.
    StartTls,
}
