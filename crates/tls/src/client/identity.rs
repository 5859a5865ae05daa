//! Fields of a client's certificate, in the form in which backends get them.

use std::fmt::Write;
use std::net::IpAddr;

use base64ct::{Base64, Encoding};
use config::types::ClientHeader;
use logic::client_name::ClientNames;
use rustls_pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Any, Decode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;

use super::super::sha256::digest;

/// Identity that a client has proved with its certificate.
#[derive(Debug)]
pub struct Identity {
    /// HTTP header fields for backends: names, and values of printable ASCII.
    pub fields: Vec<(&'static str, Box<str>)>,
    /// Common name of the subject. `None` if there is no common name or more than one.
    pub common_name: Option<Box<str>>,
}

/// Largest header value in bytes. Longer values are left out, because most servers refuse a request head with one.
const LONGEST_VALUE: usize = 16 * 1024;

impl Identity {
    /// Reads a verified certificate and the other certificates that the client sent.
    pub(super) fn of(
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        headers: &[ClientHeader],
    ) -> Result<Self, x509_cert::der::Error> {
        let parsed = Certificate::from_der(leaf)?;
        let names = names_of(&parsed)?;
        let mut fields = Vec::with_capacity(headers.len());
        for header in headers {
            let value = match header {
                ClientHeader::Certificate => byte_sequence(leaf),
                ClientHeader::Chain => {
                    let chain: Vec<_> = rest.iter().map(|certificate| byte_sequence(certificate)).collect();
                    chain.join(", ")
                }
                ClientHeader::Subject => printable(&parsed.tbs_certificate().subject().to_string()),
                ClientHeader::Names => strings(&names),
                ClientHeader::Serial => hexadecimal(parsed.tbs_certificate().serial_number().as_bytes()),
                ClientHeader::Fingerprint => hexadecimal(&digest([leaf.as_ref()])),
            };
            if !value.is_empty() && value.len() <= LONGEST_VALUE {
                fields.push((header.field(), value.into_boxed_str()));
            }
        }
        Ok(Self { fields, common_name: names.common_name })
    }
}

/// Returns the subject of a certificate that is not verified, for the log.
pub(super) fn subject(leaf: &CertificateDer<'_>) -> Option<Box<str>> {
    const LONGEST: usize = 256;
    let mut subject = printable(&Certificate::from_der(leaf).ok()?.tbs_certificate().subject().to_string());
    subject.truncate(LONGEST);
    Some(subject.into_boxed_str())
}

pub(super) fn names(leaf: &CertificateDer<'_>) -> Result<ClientNames, x509_cert::der::Error> {
    names_of(&Certificate::from_der(leaf)?)
}

fn names_of(certificate: &Certificate) -> Result<ClientNames, x509_cert::der::Error> {
    let tbs = certificate.tbs_certificate();
    let mut names = ClientNames { common_name: common_name(tbs.subject()), ..ClientNames::default() };
    let alternatives = tbs.get_extension::<SubjectAltName>()?;
    for name in alternatives.map(|(_, names)| names.0).unwrap_or_default() {
        match name {
            GeneralName::DnsName(name) => names.dns.push(name.as_str().into()),
            GeneralName::UniformResourceIdentifier(uri) => names.uris.push(uri.as_str().into()),
            GeneralName::Rfc822Name(email) => names.emails.push(email.as_str().into()),
            GeneralName::IpAddress(address) => names.addresses.extend(ip(address.as_bytes())),
            _ => {}
        }
    }
    Ok(names)
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// Returns the common name. `None` if there are two: penstock would have to guess which one is meant.
fn common_name(subject: &Name) -> Option<Box<str>> {
    const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
    let mut all = subject.iter().filter(|attribute| attribute.oid == COMMON_NAME);
    let first = all.next()?;
    if all.next().is_some() {
        return None;
    }
    text(&first.value)
}

fn text(value: &Any) -> Option<Box<str>> {
    let utf8 = Utf8StringRef::try_from(value).ok().map(|text| text.as_str());
    let printable = || PrintableStringRef::try_from(value).ok().map(|text| text.as_str().into());
    let ia5 = || Ia5StringRef::try_from(value).ok().map(|text| text.as_str().into());
    let teletex = || TeletexStringRef::try_from(value).ok().map(|text| text.as_str().into());
    utf8.map(Into::into).or_else(printable).or_else(ia5).or_else(teletex)
}

/// Formats bytes as a byte sequence of structured fields (RFC 9651 section 3.3.5).
fn byte_sequence(bytes: &[u8]) -> String {
    format!(":{}:", Base64::encode_string(bytes))
}

/// Makes a distinguished name printable ASCII: any other byte becomes a backslash and two digits (RFC 4514 section
/// 2.4).
fn printable(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b' '..=b'~' => out.push(char::from(byte)),
            // Writing to a String cannot fail, here and below.
            _ => drop(write!(out, "\\{byte:02X}")),
        }
    }
    out
}

/// Formats names as a list of strings (RFC 9651 section 3.1). Each starts with the kind of the name, so that names of
/// two kinds cannot be confused.
fn strings(names: &ClientNames) -> String {
    let addresses: Vec<String> = names.addresses.iter().map(ToString::to_string).collect();
    let kinds: [(&str, Vec<&str>); 4] = [
        ("dns", names.dns.iter().map(AsRef::as_ref).collect()),
        ("uri", names.uris.iter().map(AsRef::as_ref).collect()),
        ("email", names.emails.iter().map(AsRef::as_ref).collect()),
        ("ip", addresses.iter().map(String::as_str).collect()),
    ];
    let mut out = String::new();
    let all = kinds.iter().flat_map(|(kind, names)| names.iter().map(move |name| (kind, name)));
    for (kind, name) in all.filter(|(_, name)| name.bytes().all(|byte| matches!(byte, b' '..=b'~'))) {
        let separator = if out.is_empty() { "" } else { ", " };
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = write!(out, "{separator}\"{kind}:{name}\"");
    }
    out
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(out, "{byte:02X}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_passes_for_two_and_no_byte_ends_the_line() {
        let names = ClientNames {
            dns: vec!["a.example\", \"dns:root".into(), "b\\".into(), "c\r\nX: y".into()],
            uris: vec!["spiffe://a/b, uri:c".into()],
            addresses: vec!["2001:db8::1".parse().unwrap()],
            ..ClientNames::default()
        };
        assert_eq!(
            strings(&names),
            r#""dns:a.example\", \"dns:root", "dns:b\\", "uri:spiffe://a/b, uri:c", "ip:2001:db8::1""#
        );
        assert_eq!(printable("CN=J\u{fc}rgen\r\n"), "CN=J\\C3\\BCrgen\\0D\\0A");
        assert_eq!(hexadecimal(&[0, 255]), "00FF");
        assert_eq!(byte_sequence(b"hello"), ":aGVsbG8=:");
    }
}
