//! What a listener sends as Strict-Transport-Security (RFC 6797), and with which certificates.

use config::types::{Hsts, Protocol};
use proxy::snapshot::ListenerPlan;
use serde::Serialize;
use text::units::count;
use tls::Issuer;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HstsReport {
    /// Value of the header.
    pub value: String,
    /// Number of certificates with which it is sent.
    pub certificates: usize,
    /// Number of certificates of the listener. Only the default of `hsts` leaves the header out for some of them.
    pub of: usize,
}

impl HstsReport {
    /// `None` if the listener never sends the header, or has no certificate.
    pub(crate) fn read(plan: &ListenerPlan) -> Option<Self> {
        let (Protocol::Http(settings), Some(tls)) = (&plan.settings.protocol, &plan.tls) else { return None };
        let value = settings.hsts.value()?.to_owned();
        let issuers = tls.issuers();
        if issuers.is_empty() {
            return None;
        }
        let certificates = match settings.hsts {
            Hsts::IfIssuerTrusted => issuers.iter().filter(|issuer| **issuer == Issuer::Trusted).count(),
            Hsts::Off | Hsts::Always(_) => issuers.len(),
        };
        Some(Self { value, certificates, of: issuers.len() })
    }

    /// Sentence for an operator.
    pub fn words(&self) -> String {
        let Self { value, certificates, of } = self;
        let header = format!("Strict-Transport-Security: {value}");
        if certificates == of {
            return format!("sends {header}");
        }
        let all = count(*of, "certificate");
        if *certificates == 0 {
            return format!(
                "sends no Strict-Transport-Security: this system trusts the issuer of none of {all}; hsts sends it anyway"
            );
        }
        format!(
            "sends {header} with {certificates} of {all}: this system does not trust the issuer of the others"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_says_with_how_many_certificates() {
        let words = |certificates, of| HstsReport { value: "max-age=1".to_owned(), certificates, of }.words();
        assert_eq!(words(1, 1), "sends Strict-Transport-Security: max-age=1");
        assert!(words(1, 2).contains(" with 1 of 2 certificates: this system does not trust"));
        assert!(words(0, 1).starts_with("sends no Strict-Transport-Security: "));
    }
}
