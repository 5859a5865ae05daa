//! `tls` of a pool.

use hosts::tunnel::plan::Endpoint;
use rustls_pki_types::ServerName;

use super::parser::Parser;
use crate::de::At;
use crate::raw::{RawBackendTls, TextOr};
use crate::tree::NodeId;
use crate::types::{Backend, BackendAddress, BackendTls, Identity, MinVersion, Verify};

/// TLS settings of a pool, with the configured `server-name`.
pub(super) struct ParsedTls {
    pub(super) settings: BackendTls,
    server_name: Option<ServerName<'static>>,
}

impl Parser<'_> {
    pub(super) fn backend_tls(
        &mut self,
        at: &At<TextOr<String, RawBackendTls>>,
    ) -> Option<Option<ParsedTls>> {
        let raw = match &at.value {
            TextOr::Text(word) if word == "on" => {
                let settings =
                    BackendTls { verify: Verify::System, identity: None, min_version: MinVersion::Tls12 };
                return Some(Some(ParsedTls { settings, server_name: None }));
            }
            TextOr::Text(_) => return Some(None),
            TextOr::Table(table) => table,
        };
        let server_name = match &raw.server_name {
            Some(name) => self.server_name(name).map(Some),
            None => Some(None),
        };
        let verify = self.verify(raw);
        let identity = self.identity(raw);
        let min_version = match raw.min_version.as_ref()?.value.as_str() {
            "1.3" => MinVersion::Tls13,
            _ => MinVersion::Tls12,
        };
        let settings = BackendTls { verify: verify?, identity: identity?, min_version };
        Some(Some(ParsedTls { settings, server_name: server_name? }))
    }

    fn verify(&mut self, raw: &RawBackendTls) -> Option<Verify> {
        let verify = raw.verify.as_ref()?;
        let file = match &raw.ca {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        if verify.value != "off" {
            return Some(file?.map_or(Verify::System, Verify::File));
        }
        if let Some(ca) = &raw.ca {
            let message = "not used: verify is off";
            let hint = "remove verify = \"off\", or ca";
            drop(self.report.at_key(self.nodes, ca.id, message).hint(hint));
            return None;
        }
        let message = "any certificate is taken: an attacker on the path to a backend can read and change \
                       everything";
        let hint =
            "name the authority, or the backend's own certificate: ca = \"/etc/penstock/internal-ca.pem\"";
        drop(self.report.at(self.nodes, verify.id, message).warning().hint(hint));
        Some(Verify::Off)
    }

    fn identity(&mut self, raw: &RawBackendTls) -> Option<Option<Identity>> {
        let Some(certificate) = &raw.certificate else {
            let alone = [&raw.key, &raw.key_passphrase_file].into_iter().flatten().next();
            if let Some(key) = alone {
                let message = "a key needs its certificate, which is missing";
                let hint = "certificate = \"/etc/penstock/client.pem\"";
                drop(self.report.at_key(self.nodes, key.id, message).hint(hint));
                return None;
            }
            return Some(None);
        };
        let path = self.file(certificate);
        let key = match &raw.key {
            Some(key) => self.file(key),
            None => path.clone(),
        };
        let key_passphrase_file = match &raw.key_passphrase_file {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        let identity = Identity { certificate: path?, key: key?, key_passphrase_file: key_passphrase_file? };
        Some(Some(identity))
    }

    fn server_name(&mut self, name: &At<String>) -> Option<ServerName<'static>> {
        let text = name.value.strip_suffix('.').unwrap_or(&name.value);
        match ServerName::try_from(text.to_owned()) {
            Ok(name) => Some(name),
            Err(_) => {
                let hint = "a name or an address alone, without a port: \"app.internal\"";
                drop(self.refuse(name, "is not a server name").hint(hint));
                None
            }
        }
    }

    /// Sets the server name that each backend's certificate must contain.
    pub(super) fn server_names(
        &mut self,
        tls: &ParsedTls,
        backends: &mut [Backend],
        list: NodeId,
    ) -> Option<()> {
        for backend in backends {
            let name = tls.server_name.clone().or_else(|| own_name(&backend.address));
            // Verification is off, so the name is only sent as SNI: use one that any backend accepts.
            let nobody_looks = tls.settings.verify == Verify::Off;
            let name = name.or_else(|| ServerName::try_from("localhost").ok().filter(|_| nobody_looks));
            if name.is_none() {
                let message = format!("no certificate can be for {}", backend.address);
                let hint = "name the server: tls = { server-name = \"app.internal\" }";
                drop(self.report.at_key(self.nodes, list, message).hint(hint));
                return None;
            }
            backend.server_name = name;
        }
        Some(())
    }
}

fn own_name(address: &BackendAddress) -> Option<ServerName<'static>> {
    match address {
        BackendAddress::Ip(address) => Some(ServerName::from(address.ip())),
        BackendAddress::Name { host, .. } => ServerName::try_from(host.clone()).ok(),
        BackendAddress::Dns(name) => ServerName::try_from(name.host().to_owned()).ok(),
        BackendAddress::Discovered { name, .. } => ServerName::try_from(name.host().to_owned()).ok(),
        BackendAddress::Ssh { connect: Endpoint::Tcp { host, .. }, .. } => {
            ServerName::try_from(host.clone()).ok()
        }
        BackendAddress::Unix(_) | BackendAddress::Ssh { connect: Endpoint::Unix(_), .. } => None,
    }
}
