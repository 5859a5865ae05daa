//! `tls` of the listener. Pen names files; our configuration names a directory of certificates.

use std::path::Path;

use super::emitter::Emitter;
use super::model::{Given, is_on};
use crate::Effect;
use crate::document::{Section, list, quoted};

/// Directory for certificates that have to be moved.
const CERTIFICATES: &str = "/etc/penstock/certs";

/// Names of the ciphers that `tls.ciphers` takes, as OpenSSL writes them.
const CIPHERS: [&str; 9] = [
    "TLS_AES_256_GCM_SHA384",
    "TLS_AES_128_GCM_SHA256",
    "TLS_CHACHA20_POLY1305_SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-CHACHA20-POLY1305",
];

pub(super) fn tls(emitter: &mut Emitter, section: &mut Section, protocol: &str) {
    let Some(certificate) = emitter.pen.tls.certificate.clone() else {
        let others = [&emitter.pen.tls.names, &emitter.pen.tls.key, &emitter.pen.tls.ca_file];
        let places: Vec<_> = others.into_iter().flatten().map(|said| said.place.clone()).collect();
        for place in places {
            emitter.note(Effect::Dropped, &place, "no effect in Pen without -E: it serves no TLS");
        }
        return;
    };
    let key = emitter.pen.tls.key.as_ref().map_or(&certificate.value, |said| &said.value).clone();
    let names = emitter.pen.tls.names.clone();
    let mut comments = Vec::new();
    for absent in std::mem::take(&mut emitter.pen.tls.absent) {
        let text = format!("{} does not exist: no client would be served", absent.value);
        comments.push(emitter.note(Effect::Missing, &absent.place, &text));
    }
    let stem = stem(&certificate.value, &key);
    let own = Path::new(&certificate.value).parent().map(|parent| parent.to_string_lossy().into_owned());
    let (directory, default) = match (&names, stem, own) {
        (None, Some(stem), Some(own)) => (own, Some(stem)),
        (Some(names), Some(stem), Some(own))
            if own.trim_end_matches('/') == names.value.trim_end_matches('/') =>
        {
            (names.value.clone(), Some(stem))
        }
        (names, _, _) => {
            let directory = names.as_ref().map_or(CERTIFICATES, |said| &said.value).to_owned();
            let text = format!(
                "certificates are in one directory: install -D -m 600 {} {directory}/default.crt, and {key} {directory}/default.key",
                certificate.value
            );
            comments.push(emitter.note(Effect::Missing, &certificate.place, &text));
            (directory, None)
        }
    };
    let directory = if directory.is_empty() { "/".to_owned() } else { directory };
    section.put("tls.certificates", quoted(&directory), &comments);
    if let Some(default) = default {
        section.put("tls.default", quoted(&default), &[]);
    }
    clients(emitter, section);
    if let Some(said) = emitter.pen.tls.no_tls12.clone() {
        section.put("tls.min-version", quoted("1.3"), &[said.place]);
    }
    if let Some(said) = emitter.pen.tls.server_order.clone() {
        section.put("tls.cipher-order", quoted("server"), &[said.place]);
    }
    ciphers(emitter, section);
    if protocol == "http" {
        section.put("hsts", quoted("off"), &["Pen sends no such header".to_owned()]);
    }
}

/// Name of a certificate whose files can stay where they are.
fn stem(certificate: &str, key: &str) -> Option<String> {
    let (certificate, key) = (Path::new(certificate), Path::new(key));
    let ending = |path: &Path| path.extension().and_then(|ending| ending.to_str().map(str::to_owned));
    let fits = match (ending(certificate).as_deref(), ending(key).as_deref()) {
        (Some("pem"), Some("pem")) => certificate == key,
        (Some("crt"), Some("key")) => certificate.with_extension("") == key.with_extension(""),
        _ => false,
    };
    let name = certificate.file_stem()?.to_str()?;
    fits.then(|| name.to_owned())
}

fn clients(emitter: &mut Emitter, section: &mut Section) {
    let tls = &emitter.pen.tls;
    let authorities: Given<String> = tls.ca_file.clone().or_else(|| tls.ca_directory.clone());
    let second = tls.ca_directory.clone().filter(|_| tls.ca_file.is_some());
    match (is_on(&tls.require), authorities) {
        (false, None) => {}
        (false, Some(ca)) => {
            emitter.note(Effect::Dropped, &ca.place, "without -R Pen asks no client for a certificate");
        }
        (true, Some(ca)) => {
            let mut comments = Vec::new();
            if let Some(second) = second {
                let text = "one of -G and -A: put the file into the directory to use both";
                comments.push(emitter.note(Effect::Missing, &second.place, text));
            }
            section.put("tls.client-certificates", format!("{{ ca = {} }}", quoted(&ca.value)), &comments);
        }
        (true, None) => {
            let text = "Pen takes certificates of any authority that OpenSSL trusts: name yours by `tls.client-certificates.ca`";
            let place = "-R".to_owned();
            let comment = emitter.note(Effect::Missing, &place, text);
            section.comment(comment);
        }
    }
}

fn ciphers(emitter: &mut Emitter, section: &mut Section) {
    let Some(said) = emitter.pen.tls.ciphers.clone() else { return };
    let names: Vec<_> = said.value.split([':', ',']).collect();
    if names.iter().all(|name| CIPHERS.contains(name)) {
        let names: Vec<_> = names.into_iter().map(quoted).collect();
        section.put("tls.ciphers", list(&names), &[]);
    } else {
        let text = "not only names of ciphers that are served here: the default has those with forward secrecy and authentication";
        let comment = emitter.note(Effect::Dropped, &said.place, text);
        section.comment(comment);
    }
}
