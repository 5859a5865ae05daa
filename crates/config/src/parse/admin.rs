//! `[admin]`.

use access::policy::Role;

use super::bound::Owner;
use super::parser::Parser;
use crate::de::{At, Key};
use crate::raw::{BindText, RawConfig};
use crate::types::{Admin, AdminAccess, BindAddress, RemoteControl, TlsSettings, Transport};

impl Parser<'_> {
    /// `Some(None)` without the section. `remote` is control over the network, whose users may be those of this section too.
    pub(super) fn admin(&mut self, raw: &RawConfig, remote: Option<&RemoteControl>) -> Option<Option<Admin>> {
        let Some(section) = &raw.admin else { return Some(None) };
        let raw = &section.value;
        let acl = self.acl(&raw.acl, section.id);
        let role = |key: &Key<String>| key.as_ref().and_then(|word| word.value.parse::<Role>().ok());
        let access = raw.access.as_ref().map_or(AdminAccess::default(), |access| AdminAccess {
            metrics: role(&access.value.metrics),
            status: role(&access.value.status),
        });
        let tls = match &raw.tls {
            Some(tls) => self.tls(tls).map(Some),
            None if self.nodes.is_broken(section.id, "tls") => None,
            None => Some(None),
        };
        let users = match &raw.users {
            Some(users) => self.file(users).map(Some),
            None => Some(remote.and_then(|remote| remote.users.clone())),
        };
        let bind = raw.bind.as_ref().and_then(|bind| self.admin_bind(bind));
        let (acl, tls, users, bind) = (acl?, tls?, users?, bind?);
        if let Some(at) = &raw.bind {
            self.judge_reach(at, &bind, access, tls.as_ref());
        }
        if let (Some(at), None) = (&raw.access, &users)
            && access != AdminAccess::default()
        {
            let hint = "add users = \"/etc/penstock/users\"; penstock user token add makes a token in it";
            let message = "no client could log in: there is no file of users";
            drop(self.report.at(self.nodes, at.id, message).hint(hint));
            return None;
        }
        Some(Some(Admin { bind, acl, tls, users, access }))
    }

    fn admin_bind(&mut self, text: &At<BindText>) -> Option<BindAddress> {
        let bind = self.bind_one(text, Owner::Admin, Transport::Stream)?;
        if matches!(bind, BindAddress::Systemd(_)) {
            let hint =
                "give an address or a Unix socket: \"127.0.0.1:9900\", \"unix:/run/penstock/admin.sock\"";
            drop(self.refuse(text, "is a socket of systemd, which only a listener can take over").hint(hint));
            return None;
        }
        Some(bind)
    }

    /// Says who can read what, where that is more than an operator may have meant.
    fn judge_reach(
        &mut self,
        at: &At<BindText>,
        bind: &BindAddress,
        access: AdminAccess,
        tls: Option<&TlsSettings>,
    ) {
        let is_open = match bind {
            BindAddress::AnyIp(_) => true,
            BindAddress::Ip(address) => !address.ip().to_canonical().is_loopback(),
            // Refused above.
            BindAddress::EveryPort(_) => true,
            BindAddress::Unix(_) | BindAddress::Systemd(_) => false,
        };
        if !is_open {
            return;
        }
        let message = match (access.metrics, access.status) {
            (None, None) => "metrics and status can be read by anyone who reaches this address",
            (None, Some(_)) => "metrics can be read by anyone who reaches this address",
            (Some(_), None) => "the status can be read by anyone who reaches this address",
            (Some(_), Some(_)) if tls.is_some() => return,
            (Some(_), Some(_)) => "tokens of clients cross the network unencrypted",
        };
        let hint = match (access.metrics, access.status) {
            (None, None) => "\"127.0.0.1:9900\" is for this machine only",
            (Some(_), Some(_)) => "add tls = { certificates = \"/etc/penstock/certs\" }",
            _ => "access = { metrics = \"view\", status = \"view\" } makes clients log in",
        };
        drop(self.report.at(self.nodes, at.id, message).warning().hint(hint));
    }
}
