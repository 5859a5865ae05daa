//! What a log-in that succeeded says of the operator, whichever door it came through.

use std::fmt;

/// How an operator proved who he is. The names of SASL mechanisms are those of the IANA registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// The kernel named the peer of a Unix socket (SO_PEERCRED), or TLS a client certificate (RFC 4422, appendix A).
    External,
    /// RFC 7677.
    ScramSha256,
    /// The same, bound to the TLS connection (RFC 5802, section 6).
    ScramSha256Plus,
    /// Kerberos (RFC 5801).
    Gs2Krb5,
    /// The same, bound to the TLS connection.
    Gs2Krb5Plus,
    /// A bearer token (RFC 6750, RFC 7628).
    Bearer,
    /// A one-time password alone.
    OneTimePassword,
}

impl Mechanism {
    /// Every mechanism, for tables and tests.
    pub const ALL: [Self; 7] = [
        Self::External,
        Self::ScramSha256,
        Self::ScramSha256Plus,
        Self::Gs2Krb5,
        Self::Gs2Krb5Plus,
        Self::Bearer,
        Self::OneTimePassword,
    ];

    /// Its name in logs, policies and, for SASL, on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::External => "EXTERNAL",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha256Plus => "SCRAM-SHA-256-PLUS",
            Self::Gs2Krb5 => "GS2-KRB5",
            Self::Gs2Krb5Plus => "GS2-KRB5-PLUS",
            Self::Bearer => "OAUTHBEARER",
            Self::OneTimePassword => "otp",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kind of proof: two of different kinds are two factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Factor {
    /// Something the operator knows: a password.
    Knowledge,
    /// Something the operator has: a token, a private key, a ticket that the key distribution centre gave for one.
    Possession,
}

/// The kinds of proof that a log-in gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Factors {
    knowledge: bool,
    possession: bool,
}

impl Factors {
    /// These, and this one too.
    #[must_use]
    pub const fn with(self, factor: Factor) -> Self {
        match factor {
            Factor::Knowledge => Self { knowledge: true, ..self },
            Factor::Possession => Self { possession: true, ..self },
        }
    }

    /// How many kinds of proof there are.
    pub const fn count(self) -> u8 {
        self.knowledge as u8 + self.possession as u8
    }
}

/// Whether the log-in is tied to the connection that it came over, so that a relay in the middle cannot use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// It would be as good on another connection.
    Unbound,
    /// It is good on this connection only: channel bindings were checked (RFC 5056), or the kernel named the peer.
    Bound,
}

/// An operator whose log-in succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name under which the policy knows the operator: a user name, or a whole Kerberos principal with its realm.
    pub name: String,
    /// How the first factor was proved.
    pub mechanism: Mechanism,
    /// What kinds of proof the log-in gave.
    pub factors: Factors,
    /// Whether it is tied to its connection.
    pub channel: ChannelBinding,
}
