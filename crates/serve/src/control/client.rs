//! Identification and authorization of control clients.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use access::policy::{Role, Subject};
use logic::client_slots::Party;
use logic::control_access::{Accounts, Peer, Rights};
use logic::transaction::Operator;
use proxy::front::Front;
use state::events::RateLimitedEvent;
use tokio::net::UnixStream;

use super::ending::Ending;
use super::remote::kerberos::Kerberos;
use super::step_up::{Proved, Rule};
use crate::logins::{Logins, Rules};

/// Who a client is: by the credentials of its process, from the kernel, or by a log-in over the network.
#[derive(Clone, Debug)]
pub(super) struct PeerCredentials {
    pub(super) uid: u32,
    /// Name of the user when the client connected.
    pub(super) name: Option<Arc<str>>,
    /// `None` if the client runs in another PID namespace.
    pub(super) pid: Option<i32>,
    /// Who has logged in; then `uid` means nothing.
    pub(super) login: Option<Arc<str>>,
    pub(super) role: Role,
}

impl std::fmt::Display for PeerCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.operator().fmt(f)
    }
}

impl PeerCredentials {
    pub(super) fn operator(&self) -> Operator {
        let [name, login] = [&self.name, &self.login].map(|text| text.as_deref().map(str::to_owned));
        Operator { uid: self.uid, name, pid: self.pid, login }
    }
}

/// Name of a user. Only /etc/passwd is asked: other sources of names may be slow.
fn name_here(uid: u32) -> Option<Arc<str>> {
    let passwd = sys::file::read(Path::new("/etc/passwd"), MAX_PASSWD).unwrap_or_default();
    name_of(&String::from_utf8_lossy(&passwd), uid).map(Arc::from)
}

/// Largest size of /etc/passwd.
const MAX_PASSWD: u64 = 4 * 1024 * 1024;

/// Finds the name of a user in a text as passwd(5) has it.
fn name_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with(['+', '-']))?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// State that all control sessions share.
pub(super) struct Shared {
    pub(super) front: Arc<Front>,
    pub(super) owner: u32,
    /// Limits events about users who may not be here: with a list of users, each local user can connect.
    pub(super) refused: RateLimitedEvent,
    /// The file of users, and those who guess.
    pub(super) logins: Arc<Logins>,
    pub(super) kerberos: Kerberos,
    /// Who has given a one-time password lately.
    pub(super) proved: Proved,
    pub(super) ending: Arc<Ending>,
}

/// A client that may be here, with what its rights depend on.
pub(super) struct Admitted {
    pub(super) who: PeerCredentials,
    pub(super) origin: Origin,
    /// Number of the configuration in which its rights were read, or of an earlier one.
    pub(super) generation: u64,
}

/// What decides about the rights of a client.
pub(super) enum Origin {
    /// A user of this machine, with his groups.
    Local(Vec<u32>),
    /// A log-in.
    Remote(RemoteOperator),
}

/// Who has logged in, and from where.
pub(super) struct RemoteOperator {
    pub(super) subject: Subject,
    pub(super) from: IpAddr,
}

/// What a client may do now.
pub(super) struct Allowed {
    pub(super) role: Role,
    /// Whether a change needs a one-time password.
    pub(super) step_up: Option<Rule>,
}

impl Shared {
    /// Admits root, the user of this process, and whom the configuration names, by the kernel's peer credentials. Returns
    /// the refusal for others.
    pub(super) fn admit(&self, stream: &UnixStream) -> Result<Admitted, String> {
        let peer = stream.peer_cred().map_err(|error| format!("cannot tell who is there: {error}"))?;
        let mut groups = sys::peer::groups(stream).unwrap_or_default();
        groups.push(peer.gid());
        let generation = self.front.state.generation.load(Relaxed);
        match self.rights(peer.uid(), &groups) {
            Some(rights) => {
                let (uid, pid, name) = (peer.uid(), peer.pid(), name_here(peer.uid()));
                let who = PeerCredentials { uid, name, pid, login: None, role: role_of(rights) };
                Ok(Admitted { who, origin: Origin::Local(groups), generation })
            }
            None => Err(no_rights(peer.uid())),
        }
    }

    /// What a client may do now, or why it may do nothing.
    pub(super) async fn allowed(&self, uid: u32, origin: &Origin) -> Result<Allowed, String> {
        match origin {
            Origin::Local(groups) => {
                let rights = self.rights(uid, groups).ok_or_else(|| no_rights(uid))?;
                Ok(Allowed { role: role_of(rights), step_up: None })
            }
            Origin::Remote(RemoteOperator { subject, .. }) => {
                let snapshot = self.front.snapshot.load_full();
                let remote = snapshot.config.remote_control();
                let remote = remote.ok_or("control over the network was switched off")?;
                let rules = Rules { users: remote.users.as_deref(), policy: &remote.policy };
                let standing = self.logins.standing(rules, subject).await;
                let step_up = Rule::of(remote, subject, &standing);
                let role = standing.granted.role.ok_or(standing.granted.reason)?;
                Ok(Allowed { role, step_up })
            }
        }
    }

    /// Whose slots a client of this user takes.
    pub(super) fn party(&self, uid: u32) -> Party {
        if self.is_owner(uid) { Party::Owner } else { Party::User(uid) }
    }

    /// Whether a user is root or the one of this process.
    fn is_owner(&self, uid: u32) -> bool {
        [0, self.owner, nix::unistd::geteuid().as_raw()].contains(&uid)
    }

    /// What a user may do, as the configuration that is served says. `None`: nothing.
    pub(super) fn rights(&self, uid: u32, groups: &[u32]) -> Option<Rights> {
        if self.is_owner(uid) {
            return Some(Rights::Change);
        }
        let snapshot = self.front.snapshot.load();
        let rules = &snapshot.config.control.as_ref()?.access;
        if rules.is_empty() {
            return None;
        }
        // Other sources of names may be slow, so only these files are asked.
        let read = |path: &str| {
            let bytes = sys::file::read(Path::new(path), MAX_PASSWD).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (users, names) = (read("/etc/passwd"), read("/etc/group"));
        rules.rights(Peer { uid, groups }, Accounts { users: &users, groups: &names })
    }
}

/// Who may change all is an admin: the socket has two kinds of users.
fn role_of(rights: Rights) -> Role {
    match rights {
        Rights::Read => Role::View,
        Rights::Change => Role::Admin,
    }
}

fn no_rights(uid: u32) -> String {
    format!(
        "uid {uid} may not control this process: name the user in control.operators, or in control.readers to let it read"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_user_is_taken_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n+nis\nbroken:5\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_of(passwd, 0).as_deref(), Some("root"));
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(name_of(passwd, 5), None);
    }
}
