//! Alerts of TLS: the descriptions that other modules name, and the record of one that is not encrypted (RFC 8446
//! sections 5.1 and 6).

/// Content type of a record with an alert.
pub const CONTENT_TYPE: u8 = 21;

const FATAL: u8 = 2;

/// A record of a kind that is not allowed now.
pub const UNEXPECTED_MESSAGE: u8 = 10;

/// A record that cannot be decrypted.
pub const BAD_RECORD_MAC: u8 = 20;

/// A record that is too long.
pub const RECORD_OVERFLOW: u8 = 22;

/// Client and server share no setting.
pub const HANDSHAKE_FAILURE: u8 = 40;

/// A field whose value is not allowed.
pub const ILLEGAL_PARAMETER: u8 = 47;

/// The server denies this client, independent of its certificate.
pub const ACCESS_DENIED: u8 = 49;

/// A message that cannot be parsed.
pub const DECODE_ERROR: u8 = 50;

/// A version that is not allowed.
pub const PROTOCOL_VERSION: u8 = 70;

/// A retry with an older version than both sides have (RFC 7507 section 2).
pub const INAPPROPRIATE_FALLBACK: u8 = 86;

/// A ClientHello without an extension that is needed.
pub const MISSING_EXTENSION: u8 = 109;

/// An extension that is not allowed in this message.
pub const UNSUPPORTED_EXTENSION: u8 = 110;

/// A server name that is not served (RFC 6066 section 3).
pub const UNRECOGNIZED_NAME: u8 = 112;

/// Name of an alert in the registry of IANA; "unassigned" for a number that is not there.
pub fn name(description: u8) -> &'static str {
    match description {
        0 => "close_notify",
        UNEXPECTED_MESSAGE => "unexpected_message",
        BAD_RECORD_MAC => "bad_record_mac",
        21 => "decryption_failed",
        RECORD_OVERFLOW => "record_overflow",
        30 => "decompression_failure",
        HANDSHAKE_FAILURE => "handshake_failure",
        41 => "no_certificate",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        ILLEGAL_PARAMETER => "illegal_parameter",
        48 => "unknown_ca",
        ACCESS_DENIED => "access_denied",
        DECODE_ERROR => "decode_error",
        51 => "decrypt_error",
        52 => "too_many_cids_requested",
        60 => "export_restriction",
        PROTOCOL_VERSION => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        INAPPROPRIATE_FALLBACK => "inappropriate_fallback",
        90 => "user_canceled",
        100 => "no_renegotiation",
        MISSING_EXTENSION => "missing_extension",
        UNSUPPORTED_EXTENSION => "unsupported_extension",
        111 => "certificate_unobtainable",
        UNRECOGNIZED_NAME => "unrecognized_name",
        113 => "bad_certificate_status_response",
        114 => "bad_certificate_hash_value",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        117 => "general_error",
        120 => "no_application_protocol",
        121 => "ech_required",
        _ => "unassigned",
    }
}

/// Encodes a fatal alert as an unencrypted TLS record.
pub fn fatal(description: u8) -> [u8; 7] {
    [CONTENT_TYPE, 3, 3, 0, 2, FATAL, description]
}
