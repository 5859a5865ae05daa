//! `fast-close` of a listener.

text::words! {
    /// Sides of a session whose end also ends the other direction.
    #[derive(Default)]
    pub enum FastClose: "fast-close" {
        /// None: an end is passed on, and the other direction goes on.
        #[default]
        Off = "off",
        /// The backend.
        Up = "up",
        /// The client.
        Down = "down",
        /// Whichever ends first.
        Both = "both",
    }
}

impl FastClose {
    /// Whether the session ends with the backend's direction.
    #[must_use]
    pub fn is_at_backend(self) -> bool {
        matches!(self, Self::Up | Self::Both)
    }

    /// Whether the session ends with the client's direction.
    #[must_use]
    pub fn is_at_client(self) -> bool {
        matches!(self, Self::Down | Self::Both)
    }
}
