//! `[tunnel.NAME]`.

use std::collections::HashMap;

use hosts::tunnel::plan::{
    Check, Endpoint, Forward, Listen, Mount, MountPoint, Tunnel, Values, Way, is_name,
};
use hosts::tunnel::template::Template;

use super::address;
use super::duration::DAY;
use super::parser::{Parser, Zero, small};
use super::refused::Refused;
use crate::de::At;
use crate::raw::{BindText, RawConfig, RawForward, RawTunnel};
use crate::tree::{NodeId, Origin};
use crate::types::{BackendAddress, BindAddress};

/// Local listening addresses of forwards: the last tunnel that uses an address, and its key.
type Taken<'a> = HashMap<Listen, (&'a str, NodeId)>;

impl Parser<'_> {
    pub(super) fn tunnels(&mut self, raw: &RawConfig) -> Option<Vec<Tunnel>> {
        let entries = &raw.tunnel.as_ref()?.value.0;
        let mut taken = HashMap::new();
        let all: Vec<_> =
            entries.iter().map(|(name, tunnel)| self.tunnel(name, tunnel, &mut taken)).collect();
        all.into_iter().collect()
    }

    fn tunnel<'a>(&mut self, name: &'a str, at: &At<RawTunnel>, taken: &mut Taken<'a>) -> Option<Tunnel> {
        let raw = &at.value;
        let valid = self.name(name, at.id);
        let host = raw.host.as_ref().and_then(|host| self.read(host, address::ssh_host));
        let forwards = self.forwards(name, raw, taken);
        let keep_alive = self.time(&raw.keep_alive, Zero::Refused, DAY);
        let connect_timeout = self.time(&raw.connect_timeout, Zero::Refused, DAY);
        let check_interval = self.time(&raw.check_interval, Zero::Refused, DAY);
        let mount = self.tunnel_mount(at, forwards.as_deref());
        let job = match &raw.job {
            Some(job) => self.command(job).map(|()| Some(plain(&job.value))),
            None => (!self.nodes.is_broken(at.id, "job")).then_some(None),
        };
        valid?;
        Some(Tunnel {
            name: name.into(),
            host: host?,
            forwards: forwards?,
            keep_alive: keep_alive?,
            keep_alive_count: small(raw.keep_alive_count.as_ref()?.value),
            connect_timeout: connect_timeout?,
            check_interval: check_interval?,
            mount: mount?,
            job: job?,
        })
    }

    fn forwards<'a>(
        &mut self,
        tunnel: &'a str,
        raw: &RawTunnel,
        taken: &mut Taken<'a>,
    ) -> Option<Vec<Forward>> {
        let at = raw.forward.as_ref()?;
        if at.value.0.is_empty() {
            let hint = "add [tunnel.NAME.forward.NAME] with connect = \"127.0.0.1:2049\"";
            drop(self.report.at_key(self.nodes, at.id, "nothing is forwarded").hint(hint));
            return None;
        }
        let entries = at.value.0.iter();
        let all: Vec<_> = entries.map(|(name, forward)| self.forward(tunnel, name, forward, taken)).collect();
        all.into_iter().collect()
    }

    fn forward<'a>(
        &mut self,
        tunnel: &'a str,
        name: &str,
        at: &At<RawForward>,
        taken: &mut Taken<'a>,
    ) -> Option<Forward> {
        let raw = &at.value;
        let mut valid = self.name(name, at.id);
        if name == hosts::tunnel::plan::MOUNT_POINT {
            let message = "this name is reserved: in commands it means the mount point";
            drop(self.report.at_key(self.nodes, at.id, message));
            valid = None;
        }
        let kind = raw.kind.as_ref().map(|kind| kind.value.clone());
        let listen = raw.listen.as_ref().and_then(|listen| self.tunnel_listen(listen, kind.as_deref()));
        if let (Some(listen), Some(key), Some("local" | "dynamic")) = (&listen, &raw.listen, kind.as_deref())
            && !matches!(listen, Listen::Tcp(address) if address.port() == 0)
            && self.place(listen, tunnel, key.id, taken).is_none()
        {
            valid = None;
        }
        let connect = raw.connect.as_ref().and_then(|connect| {
            Some(match self.read(connect, address::backend)? {
                BackendAddress::Ip(address) => {
                    Endpoint::Tcp { host: address.ip().to_string(), port: address.port() }
                }
                BackendAddress::Name { host, port } => Endpoint::Tcp { host, port },
                BackendAddress::Unix(path) => Endpoint::Unix(path),
                BackendAddress::Ssh { .. } | BackendAddress::Dns(_) | BackendAddress::Discovered { .. } => {
                    drop(self.refuse(connect, "is behind another tunnel, and a forward has one host"));
                    return None;
                }
            })
        });
        let path = match &raw.check_path {
            Some(path) => self.read(path, check_path),
            None => None,
        };
        let check = raw.check.as_ref().map(|check| check.value.as_str());
        let way = match kind.as_deref()? {
            "dynamic" => Way::Dynamic { listen: listen? },
            kind => {
                if raw.connect.is_none() && !self.nodes.is_broken(at.id, "connect") {
                    let message = "connect is missing: it says where connections go";
                    let hint = "add connect = \"127.0.0.1:2049\", or kind = \"dynamic\"";
                    drop(self.report.at_key(self.nodes, at.id, message).hint(hint));
                }
                match kind {
                    "remote" => Way::Remote { listen: listen?, connect: connect? },
                    _ => Way::Local { listen: listen?, connect: connect? },
                }
            }
        };
        let check = match (&way, check) {
            (Way::Dynamic { .. }, _) | (_, Some("none")) => Check::None,
            (_, None) => return None,
            (_, Some("banner")) => Check::Banner,
            (_, Some("http")) => Check::Http { path: path? },
            (_, Some("nfs-null")) => Check::NfsNull,
            (_, Some(_)) => Check::Tcp,
        };
        valid?;
        Some(Forward { name: name.into(), way, check })
    }

    /// Records the local listening address of a forward. Two forwards of one tunnel must not share an address, because
    /// all forwards open together. Two tunnels may, if only one is up at a time: to a server, and to its replacement.
    fn place<'a>(
        &mut self,
        listen: &Listen,
        tunnel: &'a str,
        key: NodeId,
        taken: &mut Taken<'a>,
    ) -> Option<()> {
        let Some((other, first)) = taken.insert(listen.clone(), (tunnel, key)) else { return Some(()) };
        let line = self.report.whereabouts(self.nodes, first);
        if other == tunnel {
            let message = format!("another forward listens there{line}");
            drop(self.report.at(self.nodes, key, message));
            return None;
        }
        // An invalid name is reported elsewhere: do not repeat it.
        let other = if is_name(other) { format!("tunnel {other}") } else { "another tunnel".to_owned() };
        let message = format!("{other} listens there, too{line}: only one of the two can be up at a time");
        let draft = self.report.at(self.nodes, key, message).warning();
        drop(draft.hint("name another port or path, unless one is meant to take the place of the other"));
        Some(())
    }

    fn tunnel_listen(&mut self, text: &At<BindText>, kind: Option<&str>) -> Option<Listen> {
        let (listen, open) = match self.read(text, address::bind_privately)? {
            BindAddress::Unix(path) => (Listen::Unix(path), Reach::Private),
            BindAddress::Ip(address) if address.ip().to_canonical().is_loopback() => {
                (Listen::Tcp(address), Reach::Private)
            }
            BindAddress::Ip(address) => (Listen::Tcp(address), Reach::Open),
            BindAddress::AnyIp(port) => {
                (Listen::Tcp((std::net::Ipv6Addr::UNSPECIFIED, port).into()), Reach::Open)
            }
            BindAddress::EveryPort(_) => {
                let reason = "is every port of an address, and a tunnel listens on one";
                drop(self.refuse(text, reason).hint("\"127.0.0.1:5432\""));
                return None;
            }
            BindAddress::Systemd(_) => {
                let hint = "give an address or a Unix socket: \"127.0.0.1:5432\", \"unix:/run/db.sock\"";
                let reason = "is a socket of systemd, which only a listener can take over";
                drop(self.refuse(text, reason).hint(hint));
                return None;
            }
        };
        if open == Reach::Open {
            let message = match kind {
                Some("remote") => {
                    "every client that reaches this address of the host can connect into your network here"
                }
                Some("dynamic") => {
                    "every client that reaches this address can connect to all that the host can reach, without a password"
                }
                _ => "every client that reaches this address can use the tunnel, without a password",
            };
            let draft = self.report.at(self.nodes, text.id, message).warning();
            drop(draft.hint("listen on 127.0.0.1, or on a Unix socket, which is for its owner only"));
        }
        Some(listen)
    }

    fn tunnel_mount(&mut self, at: &At<RawTunnel>, forwards: Option<&[Forward]>) -> Option<Option<Mount>> {
        let raw = &at.value;
        let given = |id: NodeId| *self.nodes.origin(id) != Origin::Default;
        let Some(mount) = &raw.mount else {
            let useless = [
                raw.mount_point.as_ref().map(|key| key.id),
                raw.unmount.as_ref().map(|key| key.id).filter(|id| given(*id)),
                raw.unmount_lazy.as_ref().map(|key| key.id).filter(|id| given(*id)),
            ];
            if self.nodes.is_broken(at.id, "mount") {
                return None;
            }
            for id in useless.into_iter().flatten() {
                drop(self.report.at_key(self.nodes, id, "does nothing without mount").warning());
            }
            return Some(None);
        };
        if raw.mount_point.is_none() && !self.nodes.is_broken(at.id, "mount-point") {
            let message = "mount-point is missing: it is checked before and after the mount";
            let draft = self.report.at_key(self.nodes, mount.id, message);
            drop(draft.hint("add mount-point = \"/mnt/nas\", an existing, empty directory"));
        }
        let point = raw.mount_point.as_ref().and_then(|point| self.read(point, mount_point));
        let timeout = self.time(&raw.mount_timeout, Zero::Refused, DAY);
        // The names depend on the forwards.
        let forwards = forwards?;
        let names = Values::names(forwards, MountPoint::At(point.as_deref()?));
        let mount = self.templates(mount, &names);
        let unmount = self.templates(raw.unmount.as_ref()?, &names);
        let unmount_lazy = self.templates(raw.unmount_lazy.as_ref()?, &names);
        Some(Some(Mount {
            point: point?,
            mount: mount?,
            unmount: unmount?,
            unmount_lazy: unmount_lazy?,
            timeout: timeout?,
        }))
    }

    fn templates(&mut self, at: &At<Vec<At<String>>>, names: &[String]) -> Option<Vec<Template>> {
        self.command(at)?;
        let mut templates = Vec::new();
        for word in &at.value {
            match Template::parse(&word.value, names) {
                Ok(template) => templates.push(template),
                Err(error) => {
                    let known: Vec<_> = names.iter().map(|name| format!("{{{name}}}")).collect();
                    let draft = self.refuse_with(word, &error);
                    drop(draft.hint(format!("there is {}", known.join(", "))));
                }
            }
        }
        (templates.len() == at.value.len()).then_some(templates)
    }

    /// Checks a command given as a list of words.
    fn command(&mut self, at: &At<Vec<At<String>>>) -> Option<()> {
        if self.nodes.is_incomplete(at.id) {
            return None;
        }
        let message = match at.value.first() {
            None => "this command is empty",
            Some(program) if program.value.is_empty() => "the program has no name",
            Some(program) if at.value.len() == 1 && program.value.contains(' ') => {
                "this is one word, and there is no shell that splits it"
            }
            Some(_) if at.value.iter().any(|word| word.value.contains('\0')) => "a word holds a zero byte",
            Some(_) => return Some(()),
        };
        let draft = self.report.at(self.nodes, at.id, message);
        drop(draft.hint("write each word by itself: [\"umount\", \"/mnt/nas\"]"));
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Private,
    Open,
}

fn plain(words: &[At<String>]) -> Vec<String> {
    words.iter().map(|word| word.value.clone()).collect()
}

fn check_path(text: &str) -> Result<String, Refused> {
    if !text.starts_with('/') || !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.len() > 1024 {
        return Err(Refused::new("is not a path of a request: it begins with / and has no blanks"));
    }
    Ok(text.to_owned())
}

/// Normalizes a mount point to the kernel's spelling, so that it is found in the list of mounts.
fn mount_point(text: &str) -> Result<std::path::PathBuf, Refused> {
    let path = address::absolute_path(text)?;
    let clean: std::path::PathBuf = path.components().collect();
    if clean.parent().is_none() {
        return Err(Refused::new("is the root of everything"));
    }
    if clean.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(Refused::new("has .. in it: write the directory itself"));
    }
    Ok(clean)
}
