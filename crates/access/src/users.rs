//! The file of users: a line each, `NAME KEY=VALUE ...`, and comments. Lines that a change does not concern stay as they are.

use std::collections::HashMap;
use std::fmt;

use base64ct::{Base64, Encoding};

use crate::policy::Role;
use crate::sasl::{Credential, CredentialError, prepare};

mod account;
mod exposed;
mod ssh_key;
mod token;

pub use account::{Account, NoAccount};
pub use exposed::{Exposed, FIRST_PERSON};
pub use ssh_key::{NoSshKey, SshKey};
pub use token::{Secret, Token};

/// Largest size of a file in bytes, for those who read it.
pub const LARGEST: u64 = 64 * 1024 * 1024;

/// Largest number of users of a file.
const MOST: usize = 100_000;

/// A user. Keys that this version does not know are refused: one of them might take rights away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    /// `role=`
    pub role: Option<Role>,
    /// `groups=A,B`
    pub groups: Vec<String>,
    /// `scram=`: what is stored of the password.
    pub scram: Option<Credential>,
    /// `principal=NAME@REALM`, also several times: the user in Kerberos, for his groups.
    pub principals: Vec<String>,
    /// `certificate=NAME`, also several times: the user in client certificates, for his groups.
    pub certificates: Vec<String>,
    /// `ssh-key=`, also several times: public keys for the accounts of hosts. They give no rights here.
    pub ssh_keys: Vec<SshKey>,
    /// `accounts=A,B@HOST*`: the accounts of hosts that these keys may stand in; empty: any.
    pub accounts: Vec<Account>,
    /// `revoked=YYYY-MM-DD`: the keys are to be on no host any more, and the user may do nothing.
    pub revoked: Option<String>,
}

/// The file as a whole. A name is found in the same time wherever its line stands, so that time tells no stranger who is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    lines: Vec<Line>,
    index: Index,
}

/// Numbers of lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Index {
    names: HashMap<String, usize>,
    principals: HashMap<String, usize>,
    certificates: HashMap<String, usize>,
    /// Bearer tokens, by what is stored of them.
    tokens: HashMap<[u8; 32], usize>,
    token_names: HashMap<String, usize>,
    /// Users with a password.
    passwords: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    User(Box<User>),
    /// `@key BASE64`
    Key([u8; 32]),
    /// `@token NAME KEY=VALUE ...`
    Token(Box<Token>),
    /// A comment or an empty line.
    Other(String),
}

/// Begins the line of the key.
const KEY: &str = "@key ";

/// Begins the line of a bearer token.
const TOKEN: &str = "@token ";

/// A fault of the file, with the number of its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct UsersError {
    pub line: usize,
    pub fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error(
        "{0} is not a valid name: up to 64 bytes of letters, digits and . _ @ + -, none of .+-@ first, in the form of SASLprep"
    )]
    Name(String),
    #[error("the line @key has no 32 bytes in Base64, or is the second one")]
    Key,
    #[error("the user {0} stands in a line before")]
    Twice(String),
    #[error("{0} stands in the line of another user before")]
    Shared(String),
    #[error("{0} is no KEY=VALUE")]
    NoValue(String),
    #[error(
        "the key {0} is unknown: role, groups, scram, principal, certificate, ssh-key, accounts, revoked"
    )]
    UnknownKey(String),
    #[error("the key {0} stands twice")]
    KeyTwice(&'static str),
    #[error("role {0} is none of view, operate, admin")]
    Role(String),
    #[error("scram {0}")]
    Scram(CredentialError),
    #[error("principal {0} has no realm")]
    Realm(String),
    #[error("ssh-key {0}")]
    SshKey(NoSshKey),
    #[error("accounts: {0}")]
    Account(NoAccount),
    #[error("revoked: {0} is no date like 2026-03-01")]
    Date(String),
    #[error("{0} is revoked, and has a role, groups or a way to log in: take these away, or `revoked`")]
    RevokedWithRights(String),
    #[error("the token {0} stands in a line before")]
    TokenTwice(String),
    #[error("the token {0} lacks role=, expires= or sha256=")]
    TokenLacks(String),
    #[error("{0} is no time in seconds since 1970")]
    Expires(String),
    #[error("sha256 of a token has no 32 bytes in Base64")]
    Hash,
    #[error("there are more than {MOST} users and tokens")]
    TooMany,
}

impl Users {
    pub fn parse(text: &str) -> Result<Self, UsersError> {
        let mut users = Self::default();
        for (at, text) in text.lines().enumerate() {
            let fail = |fault| UsersError { line: at + 1, fault };
            let line = Line::parse(text).map_err(fail)?;
            users.index.add(users.lines.len(), &line).map_err(fail)?;
            if matches!(line, Line::Key(_)) && users.key().is_some() {
                return Err(fail(Fault::Key));
            }
            users.lines.push(line);
            if users.lines.len() > MOST {
                return Err(fail(Fault::TooMany));
            }
        }
        Ok(users)
    }

    pub fn iter(&self) -> impl Iterator<Item = &User> + Clone {
        self.lines.iter().filter_map(|line| match line {
            Line::User(user) => Some(&**user),
            Line::Key(_) | Line::Token(_) | Line::Other(_) => None,
        })
    }

    pub fn tokens(&self) -> impl Iterator<Item = &Token> + Clone {
        self.lines.iter().filter_map(|line| match line {
            Line::Token(token) => Some(&**token),
            Line::Key(_) | Line::User(_) | Line::Other(_) => None,
        })
    }

    pub fn has_tokens(&self) -> bool {
        !self.index.tokens.is_empty()
    }

    /// Key of [`Credential::fake`]: with it an unknown name looks alike at each start, and on every node that has the file.
    pub fn key(&self) -> Option<&[u8; 32]> {
        self.lines.iter().find_map(|line| match line {
            Line::Key(key) => Some(key),
            Line::User(_) | Line::Token(_) | Line::Other(_) => None,
        })
    }

    /// Sets the key of a new file; it must be random.
    pub fn set_key(&mut self, key: [u8; 32]) {
        self.lines.retain(|line| !matches!(line, Line::Key(_)));
        self.lines.insert(0, Line::Key(key));
        self.number();
    }

    pub fn find(&self, name: &str) -> Option<&User> {
        self.user(self.index.names.get(name))
    }

    /// The user of a whole principal.
    pub fn of_principal(&self, principal: &str) -> Option<&User> {
        self.user(self.index.principals.get(principal))
    }

    /// The user of a name in client certificates.
    pub fn of_certificate(&self, name: &str) -> Option<&User> {
        self.user(self.index.certificates.get(name))
    }

    /// The token that a client has sent. Whether it has ended is another question.
    pub fn token(&self, secret: &Secret) -> Option<&Token> {
        self.token_at(self.index.tokens.get(&secret.hash()))
    }

    /// The token of this name.
    pub fn token_named(&self, name: &str) -> Option<&Token> {
        self.token_at(self.index.token_names.get(name))
    }

    /// Credentials of all users, for [`Credential::fake`].
    pub fn credentials(&self) -> impl ExactSizeIterator<Item = &Credential> {
        let all = self.index.passwords.iter().map(|at| self.user(Some(at)));
        all.map(|user| {
            user.and_then(|user| user.scram.as_ref()).expect("the index lists users with a password")
        })
    }

    fn token_at(&self, at: Option<&usize>) -> Option<&Token> {
        match self.lines.get(*at?)? {
            Line::Token(token) => Some(token),
            Line::User(_) | Line::Key(_) | Line::Other(_) => None,
        }
    }

    fn user(&self, at: Option<&usize>) -> Option<&User> {
        match self.lines.get(*at?)? {
            Line::User(user) => Some(user),
            Line::Key(_) | Line::Token(_) | Line::Other(_) => None,
        }
    }

    /// Replaces the user of this name, or adds one at the end.
    pub fn put(&mut self, user: User) {
        let at = self.index.names.get(&user.name).copied();
        self.place(at, Line::User(Box::new(user)));
    }

    /// Removes a user; `None`: there is none of this name.
    pub fn remove(&mut self, name: &str) -> Option<User> {
        let removed = self.lines.remove(*self.index.names.get(name)?);
        self.number();
        match removed {
            Line::User(user) => Some(*user),
            Line::Key(_) | Line::Token(_) | Line::Other(_) => None,
        }
    }

    /// Replaces the token of this name, or adds one at the end.
    pub fn put_token(&mut self, token: Token) {
        let at = self.index.token_names.get(&token.name).copied();
        self.place(at, Line::Token(Box::new(token)));
    }

    /// Removes a token; `None`: there is none of this name.
    pub fn remove_token(&mut self, name: &str) -> Option<Token> {
        let removed = self.lines.remove(*self.index.token_names.get(name)?);
        self.number();
        match removed {
            Line::Token(token) => Some(*token),
            Line::Key(_) | Line::User(_) | Line::Other(_) => None,
        }
    }

    fn place(&mut self, at: Option<usize>, line: Line) {
        match at.and_then(|at| self.lines.get_mut(at)) {
            Some(there) => *there = line,
            None => self.lines.push(line),
        }
        self.number();
    }

    /// Makes the index anew. What stands twice is told when the text is parsed.
    fn number(&mut self) {
        self.index = Index::default();
        for (at, line) in self.lines.iter().enumerate() {
            // What is there twice is found by its later line.
            let _ = self.index.add(at, line);
        }
    }
}

impl Index {
    fn add(&mut self, at: usize, line: &Line) -> Result<(), Fault> {
        let user = match line {
            Line::User(user) => user,
            Line::Token(token) => {
                let name = self.token_names.insert(token.name.clone(), at);
                let is_new = name.or(self.tokens.insert(token.hash, at)).is_none();
                return if is_new { Ok(()) } else { Err(Fault::TokenTwice(token.name.clone())) };
            }
            Line::Key(_) | Line::Other(_) => return Ok(()),
        };
        if self.names.insert(user.name.clone(), at).is_some() {
            return Err(Fault::Twice(user.name.clone()));
        }
        for name in &user.principals {
            if self.principals.insert(name.clone(), at).is_some() {
                return Err(Fault::Shared(format!("principal {name}")));
            }
        }
        for name in &user.certificates {
            if self.certificates.insert(name.clone(), at).is_some() {
                return Err(Fault::Shared(format!("certificate {name}")));
            }
        }
        self.passwords.extend(user.scram.as_ref().map(|_| at));
        Ok(())
    }
}

impl Line {
    fn parse(line: &str) -> Result<Self, Fault> {
        if line.trim_start().is_empty() || line.trim_start().starts_with('#') {
            return Ok(Self::Other(line.to_owned()));
        }
        if let Some(key) = line.strip_prefix(KEY) {
            let key = Base64::decode_vec(key.trim_end()).ok().and_then(|key| key.try_into().ok());
            return key.map(Self::Key).ok_or(Fault::Key);
        }
        match line.strip_prefix(TOKEN) {
            Some(token) => Token::parse(token).map(Box::new).map(Self::Token),
            None => User::parse(line).map(Box::new).map(Self::User),
        }
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| match line {
            Line::User(user) => writeln!(f, "{user}"),
            Line::Key(key) => writeln!(f, "{KEY}{}", Base64::encode_string(key)),
            Line::Token(token) => writeln!(f, "{TOKEN}{token}"),
            Line::Other(text) => writeln!(f, "{text}"),
        })
    }
}

impl User {
    /// A user without rights.
    pub fn new(name: &str) -> Result<Self, Fault> {
        let fits = |char: char| char.is_alphanumeric() || "._@+-".contains(char);
        let is_name = (1..=64).contains(&name.len())
            && name.chars().all(fits)
            && !name.starts_with(['.', '+', '-', '@'])
            && prepare(name).is_ok_and(|prepared| prepared == name);
        if !is_name {
            return Err(Fault::Name(name.escape_debug().take(80).collect()));
        }
        Ok(Self { name: name.to_owned(), ..Self::default() })
    }

    fn parse(line: &str) -> Result<Self, Fault> {
        let mut words = line.split_ascii_whitespace();
        let mut user = Self::new(words.next().unwrap_or_default())?;
        for word in words {
            let shown = || word.escape_debug().take(40).collect::<String>();
            let (key, value) = word.split_once('=').ok_or_else(|| Fault::NoValue(shown()))?;
            if value.is_empty() {
                return Err(Fault::NoValue(shown()));
            }
            match key {
                "role" if user.role.is_some() => return Err(Fault::KeyTwice("role")),
                "role" => user.role = Some(value.parse().map_err(|_| Fault::Role(shown()))?),
                "groups" if !user.groups.is_empty() => return Err(Fault::KeyTwice("groups")),
                "groups" => {
                    for group in value.split(',') {
                        user.groups.push(Self::new(group)?.name);
                    }
                }
                "scram" if user.scram.is_some() => return Err(Fault::KeyTwice("scram")),
                "scram" => user.scram = Some(value.parse().map_err(Fault::Scram)?),
                "principal" if !value.contains('@') => return Err(Fault::Realm(shown())),
                "principal" => user.principals.push(value.to_owned()),
                "certificate" => user.certificates.push(value.to_owned()),
                "ssh-key" => user.ssh_keys.push(value.parse().map_err(Fault::SshKey)?),
                "accounts" if !user.accounts.is_empty() => return Err(Fault::KeyTwice("accounts")),
                "accounts" => {
                    let all = value.split(',').map(str::parse).collect::<Result<_, _>>();
                    user.accounts = all.map_err(Fault::Account)?;
                }
                "revoked" if user.revoked.is_some() => return Err(Fault::KeyTwice("revoked")),
                "revoked" if !is_date(value) => return Err(Fault::Date(shown())),
                "revoked" => user.revoked = Some(value.to_owned()),
                _ => return Err(Fault::UnknownKey(shown())),
            }
        }
        if user.revoked.is_some() && user.has_rights() {
            return Err(Fault::RevokedWithRights(user.name));
        }
        Ok(user)
    }

    /// Whether the file gives this user anything but keys for hosts.
    fn has_rights(&self) -> bool {
        self.role.is_some()
            || self.scram.is_some()
            || !(self.groups.is_empty() && self.principals.is_empty() && self.certificates.is_empty())
    }

    /// Takes all rights away, and keeps the keys, so that what is left of them on hosts is recognized.
    pub fn revoke(&mut self, date: &str) {
        let (name, ssh_keys) = (std::mem::take(&mut self.name), std::mem::take(&mut self.ssh_keys));
        *self = Self { name, ssh_keys, revoked: Some(date.to_owned()), ..Self::default() };
    }
}

fn is_date(text: &str) -> bool {
    let digits = |at: std::ops::Range<usize>| text.as_bytes()[at].iter().all(u8::is_ascii_digit);
    text.len() == 10
        && digits(0..4)
        && digits(5..7)
        && digits(8..10)
        && (text.as_bytes()[4], text.as_bytes()[7]) == (b'-', b'-')
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(role) = self.role {
            write!(f, " role={role}")?;
        }
        if !self.groups.is_empty() {
            write!(f, " groups={}", self.groups.join(","))?;
        }
        if let Some(scram) = &self.scram {
            write!(f, " scram={scram}")?;
        }
        self.principals.iter().try_for_each(|it| write!(f, " principal={it}"))?;
        self.certificates.iter().try_for_each(|it| write!(f, " certificate={it}"))?;
        self.ssh_keys.iter().try_for_each(|it| write!(f, " ssh-key={it}"))?;
        if !self.accounts.is_empty() {
            let accounts: Vec<_> = self.accounts.iter().map(ToString::to_string).collect();
            write!(f, " accounts={}", accounts.join(","))?;
        }
        self.revoked.as_ref().map_or(Ok(()), |date| write!(f, " revoked={date}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRAM: &str = "{SCRAM-SHA-256}4096,W22ZaJ0SNY7soEsUEjb6gQ==,\
                         WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn a_change_leaves_the_other_lines_as_they_are() {
        let text = format!(
            "# people\n\nann role=admin groups=ops,dba scram={SCRAM} principal=ann@EXAMPLE certificate=ann.example\nbob role=view\n"
        );
        let mut users = Users::parse(&text).unwrap();
        assert_eq!(users.to_string(), text);
        let ann = users.find("ann").unwrap();
        assert_eq!((ann.role, ann.groups.len()), (Some(Role::Admin), 2));
        assert_eq!(users.of_principal("ann@EXAMPLE"), Some(ann));
        assert_eq!(users.of_certificate("ann.example"), Some(ann));
        assert_eq!((users.of_principal("ann"), users.find("ANN")), (None, None));
        assert_eq!(users.credentials().len(), 1);
        users.put(User { role: Some(Role::Operate), ..User::new("bob").unwrap() });
        users.put(User::new("eve").unwrap());
        assert_eq!(users.to_string(), format!("{}eve\n", text.replace("bob role=view", "bob role=operate")));
        assert_eq!(users.remove("ann").unwrap().groups, ["ops", "dba"]);
        assert!(users.remove("ann").is_none());
        assert_eq!(users.to_string(), "# people\n\nbob role=operate\neve\n");
        assert_eq!(users.key(), None);
        users.set_key([7; 32]);
        assert_eq!(Users::parse(&users.to_string()).unwrap().key(), Some(&[7; 32]));
        assert_eq!(users.find("eve").unwrap().name, "eve", "the lines were numbered anew");
        assert!(Users::parse("caf\u{e9} role=view\n").unwrap().find("caf\u{e9}").is_some());
    }

    #[test]
    fn tokens_stand_beside_users_and_are_found_by_what_is_stored_of_them() {
        let secret: Secret = format!("pst_{}A", "a".repeat(42)).parse().unwrap();
        let token = Token {
            owner: Some("ann".to_owned()),
            name: "ci".to_owned(),
            role: Role::View,
            expires: Some(1_800_000_000),
            hash: secret.hash(),
        };
        let mut users = Users::parse("ann role=view\n").unwrap();
        users.put_token(token.clone());
        let text = users.to_string();
        assert!(!text.contains("pst_"), "nothing by which one could log in: {text}");
        let read = Users::parse(&text).unwrap();
        assert_eq!((read.token(&secret), read.token_named("ci")), (Some(&token), Some(&token)));
        assert_eq!(read.token(&format!("pst_{}A", "b".repeat(42)).parse().unwrap()), None);
        users.put_token(Token { role: Role::Operate, ..token.clone() });
        assert_eq!(users.tokens().count(), 1);
        assert_eq!(users.remove_token("ci").unwrap().role, Role::Operate);
        assert_eq!(users.to_string(), "ann role=view\n");
        let line = text.lines().last().unwrap();
        for (text, fault) in [
            (format!("{line}\n{line}"), Fault::TokenTwice("ci".to_owned())),
            (line.replace("role=view", "role=root"), Fault::Role("role=root".to_owned())),
            (line.replace(" role=view", ""), Fault::TokenLacks("ci".to_owned())),
            (line.replace("1800000000", "soon"), Fault::Expires("expires=soon".to_owned())),
            (line.replace("sha256=", "sha256=A"), Fault::Hash),
            (line.replace("expires=", "until="), Fault::UnknownKey("until=1800000000".to_owned())),
        ] {
            assert_eq!(Users::parse(&text).map_err(|error| error.fault), Err(fault), "{text}");
        }
    }

    const KEY: &str = "ssh-ed25519:AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

    #[test]
    fn keys_of_ssh_and_their_accounts_read_back_as_they_were_written() {
        let text = format!(
            "ann role=view ssh-key={KEY} ssh-key={KEY}:ann@desk accounts=deploy,root@db*\nbob ssh-key={KEY} revoked=2026-11-28\n"
        );
        let users = Users::parse(&text).unwrap();
        assert_eq!(users.to_string(), text);
        let mut ann = users.find("ann").unwrap().clone();
        assert_eq!((ann.ssh_keys[0].algorithm(), ann.ssh_keys[0].blob().len()), ("ssh-ed25519", 51));
        assert_eq!(ann.ssh_keys[1].comment(), "ann@desk");
        let may = |account: &str, host: &str| ann.accounts.iter().any(|one| one.is(account, host));
        assert!(may("deploy", "web1") && may("root", "db1") && !may("root", "web1") && !may("ann", "db1"));
        ann.revoke("2026-11-29");
        assert_eq!(ann.to_string(), format!("ann ssh-key={KEY} ssh-key={KEY}:ann@desk revoked=2026-11-29"));
        assert_eq!(SshKey::new(ann.ssh_keys[0].blob(), " a b:c\u{1b} ").unwrap().comment(), "a_b_c_");
    }

    #[test]
    fn a_fault_is_refused_with_its_line() {
        for (line, fault) in [
            ("a:b", Fault::Name("a:b".to_owned())),
            ("-a", Fault::Name("-a".to_owned())),
            ("@key x", Fault::Key),
            ("ok role=view", Fault::Twice("ok".to_owned())),
            ("a role", Fault::NoValue("role".to_owned())),
            ("a role=", Fault::NoValue("role=".to_owned())),
            ("a role=root", Fault::Role("role=root".to_owned())),
            ("a role=view role=admin", Fault::KeyTwice("role")),
            ("a groups=x,,y", Fault::Name(String::new())),
            ("a disabled=yes", Fault::UnknownKey("disabled=yes".to_owned())),
            ("a scram=x", Fault::Scram(CredentialError::OtherMechanism)),
            ("a principal=ann", Fault::Realm("principal=ann".to_owned())),
            ("a certificate=one", Fault::Shared("certificate one".to_owned())),
            ("a ssh-key=ssh-ed25519", Fault::SshKey(NoSshKey)),
            (
                "a ssh-key=ssh-rsa:AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq",
                Fault::SshKey(NoSshKey),
            ),
            ("a accounts=a,,b", Fault::Account(NoAccount(String::new()))),
            ("a accounts=x accounts=y", Fault::KeyTwice("accounts")),
            ("a revoked=yes", Fault::Date("revoked=yes".to_owned())),
            ("a revoked=2026-03-01 role=view", Fault::RevokedWithRights("a".to_owned())),
            ("cafe\u{301} role=view", Fault::Name("cafe\u{301}".to_owned())),
        ] {
            let text = format!("# x\nok certificate=one\n{line}\n");
            assert_eq!(Users::parse(&text), Err(UsersError { line: 3, fault }), "{line}");
        }
    }
}
