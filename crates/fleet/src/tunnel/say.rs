//! The callback for a tunnel's messages.

use std::sync::Arc;

/// Called with one line for each event, without the name of the tunnel.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;
