//! Who may do what: roles of operators, by user, Kerberos principal, certificate, group or token. Every decision says why, for
//! the log.

use std::fmt;
use std::str::FromStr;

use crate::identity::{Identity, Mechanism};

/// What an operator may do. Each role may do all that the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Read what has no texts of the configuration.
    View,
    /// Also change what is served without a change of the configuration: drain, weights, sessions.
    Operate,
    /// Everything.
    Admin,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::View, Self::Operate, Self::Admin];

    pub const fn word(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no role: view, operate or admin")]
pub struct NoRole;

impl FromStr for Role {
    type Err = NoRole;

    fn from_str(word: &str) -> Result<Self, NoRole> {
        Self::ALL.into_iter().find(|role| role.word() == word).ok_or(NoRole)
    }
}

/// Makes a subject of a name.
type Make = fn(String) -> Subject;

/// Whom a rule is for. A name counts only with the mechanisms that prove names of its kind: a certificate for `ann` is not the
/// user `ann`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// `user:NAME`, of the file of users: a password or a one-time password.
    User(String),
    /// `principal:NAME@REALM`, of Kerberos.
    Principal(String),
    /// `certificate:NAME`, of a client certificate.
    Certificate(String),
    /// `token:NAME`, a bearer token.
    Token(String),
    /// `group:NAME`, of the file of users.
    Group(String),
}

impl Subject {
    const KINDS: [(&'static str, Make); 5] = [
        ("user", Self::User),
        ("principal", Self::Principal),
        ("certificate", Self::Certificate),
        ("token", Self::Token),
        ("group", Self::Group),
    ];

    /// Who logs in.
    pub fn of(identity: &Identity) -> Self {
        let name = identity.name.clone();
        match identity.mechanism {
            Mechanism::External => Self::Certificate(name),
            Mechanism::ScramSha256 | Mechanism::ScramSha256Plus | Mechanism::OneTimePassword => {
                Self::User(name)
            }
            Mechanism::Gs2Krb5 | Mechanism::Gs2Krb5Plus => Self::Principal(name),
            Mechanism::Bearer => Self::Token(name),
        }
    }

    /// The same with so many characters of its name at most, for tables of what strangers have sent.
    pub(crate) fn cut(&self, most: usize) -> Self {
        let make = Self::KINDS.iter().find(|(word, _)| *word == self.kind());
        let name = self.name().chars().take(most).collect();
        make.map_or_else(|| self.clone(), |(_, make)| make(name))
    }

    pub fn name(&self) -> &str {
        match self {
            Self::User(name)
            | Self::Principal(name)
            | Self::Certificate(name)
            | Self::Token(name)
            | Self::Group(name) => name,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Principal(_) => "principal",
            Self::Certificate(_) => "certificate",
            Self::Token(_) => "token",
            Self::Group(_) => "group",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSubject {
    #[error("does not begin with user:, principal:, certificate:, token: or group:")]
    Kind,
    #[error("has no name, or one with blanks or control characters")]
    Name,
    #[error("is a principal without its realm: write principal:NAME@REALM")]
    Realm,
}

impl FromStr for Subject {
    type Err = NoSubject;

    fn from_str(text: &str) -> Result<Self, NoSubject> {
        let (kind, name) = text.split_once(':').ok_or(NoSubject::Kind)?;
        let known = Self::KINDS.iter().find(|(word, _)| *word == kind);
        let (_, make) = known.ok_or(NoSubject::Kind)?;
        if name.is_empty() || name.len() > 256 || name.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(NoSubject::Name);
        }
        if kind == "principal" && !name.contains('@') {
            return Err(NoSubject::Realm);
        }
        Ok(make(name.to_owned()))
    }
}

/// The rules of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<(Subject, Role)>,
}

impl Policy {
    pub fn new(rules: impl IntoIterator<Item = (Subject, Role)>) -> Self {
        Self { rules: rules.into_iter().collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Decides what an operator may do: the most that a rule gives, by himself, by one of his groups, or by his line in the
    /// file of users.
    pub fn role(&self, subject: &Subject, groups: &[String], own: Option<Role>) -> Granted {
        let is_for = |rule: &Subject| match rule {
            Subject::Group(group) => groups.contains(group),
            one => one == subject,
        };
        let rules = self.rules.iter().filter(|(rule, _)| is_for(rule));
        let best = rules.max_by_key(|(_, role)| *role);
        match (best, own) {
            (Some((rule, role)), own) if own.is_none_or(|own| own < *role) => {
                Granted { role: Some(*role), reason: format!("role {role} by {rule}") }
            }
            (_, Some(own)) => Granted { role: Some(own), reason: format!("role {own} by the file of users") },
            (_, None) => Granted { role: None, reason: format!("no rule names {subject} or its groups") },
        }
    }
}

/// A decision, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// `None`: nothing.
    pub role: Option<Role>,
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{ChannelBinding, Factors};

    fn policy(rules: &[(&str, Role)]) -> Policy {
        Policy::new(rules.iter().map(|(subject, role)| (subject.parse().unwrap(), *role)))
    }

    #[test]
    fn the_most_that_a_rule_gives_counts_and_is_named() {
        let policy = policy(&[
            ("user:ann", Role::View),
            ("group:ops", Role::Operate),
            ("principal:ann@EXAMPLE", Role::Admin),
        ]);
        let ask = |subject: &str, groups: &[&str], own| {
            let groups: Vec<_> = groups.iter().map(|group| (*group).to_owned()).collect();
            let granted = policy.role(&subject.parse().unwrap(), &groups, own);
            (granted.role, granted.reason)
        };
        assert_eq!(ask("user:ann", &[], None), (Some(Role::View), "role view by user:ann".to_owned()));
        assert_eq!(ask("user:ann", &["ops"], None).1, "role operate by group:ops");
        assert_eq!(ask("user:ann", &[], Some(Role::Admin)).1, "role admin by the file of users");
        assert_eq!(ask("user:ann", &["ops"], Some(Role::View)).0, Some(Role::Operate));
        assert_eq!(ask("principal:ann@EXAMPLE", &[], None).0, Some(Role::Admin));
        assert_eq!(ask("principal:ann@OTHER", &[], None).0, None, "another realm");
        let nobody = ask("certificate:ann", &["dba"], None);
        assert_eq!(nobody, (None, "no rule names certificate:ann or its groups".to_owned()));
    }

    #[test]
    fn a_name_counts_by_the_kind_of_its_proof() {
        for (mechanism, subject) in [
            (Mechanism::External, "certificate:ann"),
            (Mechanism::ScramSha256, "user:ann"),
            (Mechanism::ScramSha256Plus, "user:ann"),
            (Mechanism::OneTimePassword, "user:ann"),
            (Mechanism::Gs2Krb5, "principal:ann"),
            (Mechanism::Gs2Krb5Plus, "principal:ann"),
            (Mechanism::Bearer, "token:ann"),
        ] {
            let factors = Factors::default();
            let identity =
                Identity { name: "ann".to_owned(), mechanism, factors, channel: ChannelBinding::Bound };
            assert_eq!(Subject::of(&identity).to_string(), subject);
        }
    }

    #[test]
    fn only_subjects_and_roles_are_read() {
        for text in ["user:ann", "principal:a/b@C.D", "certificate:a.example", "token:t1", "group:ops"] {
            assert_eq!(text.parse::<Subject>().unwrap().to_string(), text);
        }
        for (text, why) in [
            ("ann", NoSubject::Kind),
            ("User:ann", NoSubject::Kind),
            ("uid:0", NoSubject::Kind),
            ("user:", NoSubject::Name),
            ("user:a b", NoSubject::Name),
            ("group:a\nb", NoSubject::Name),
            ("principal:ann", NoSubject::Realm),
        ] {
            assert_eq!(text.parse::<Subject>(), Err(why), "{text}");
        }
        assert_eq!("operate".parse(), Ok(Role::Operate));
        assert_eq!("root".parse::<Role>(), Err(NoRole));
        assert!(Role::View < Role::Operate && Role::Operate < Role::Admin);
    }
}
