//! The small types that every layer speaks: addresses, streams, pools, handles.

use std::fmt;

/// One kibibyte in bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte in bytes.
pub const GIB: u64 = 1 << 30;

/// An address on a device. It is a number to us: nothing in the core reads or writes behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(pub u64);

impl Addr {
    /// The address `bytes` after this one.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Addr {
        Addr(self.0 + bytes)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A stream of the device, by the value of its raw handle. Stream 0 is the default stream.
///
/// The order of streams is the order of these numbers; it decides in which order the cache is
/// walked when memory is given back.
///
/// Anybody can make one: it is a number, and no promise. A device that would follow it as a handle
/// takes only those that somebody vouched for. Whoever names a stream in a call has it for the time
/// of the call: no other thread begins or ends a capture of it, or destroys it, meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Names the host's own work, which no device orders: memory of the host is handed out on it, so
/// that every stream that uses it is another one. No device gives a stream this number.
pub const HOST_STREAM: StreamId = StreamId(u64::MAX);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// Which device of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u32);

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.0)
    }
}

/// Which of the two kinds of pool a request belongs to, by its rounded size. As numbers they are 0
/// and 1, and index what is kept for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Requests up to 1 MiB, packed into segments of 2 MiB.
    Small,
    /// All larger requests.
    Large,
}

/// Names a private pool, as PyTorch does: (0, n) for one that a program made, (n, 0) for one that a
/// graph capture made. (0, 0) is no private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// Names no private pool.
    pub const NONE: PoolId = PoolId(0, 0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool ({}, {})", self.0, self.1)
    }
}

/// Physical memory that a device created and that can be mapped at an address. Opaque to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageHandle(pub u64);

/// An event that a device created. Opaque to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// One graph capture. A device never gives the same number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureId(pub u64);

/// The token of a graph capture that a program declared: it ends the capture. An allocator never
/// gives the same number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureToken(pub u64);

/// One node of the graph that a capture makes: a piece of captured work. Opaque to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// A range of addresses: `size_bytes` from `addr` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first address.
    pub addr: Addr,
    /// How many bytes.
    pub size_bytes: u64,
}

impl Span {
    /// The span of `size_bytes` from `addr` on.
    pub const fn new(addr: Addr, size_bytes: u64) -> Span {
        Span { addr, size_bytes }
    }

    /// The first address behind the span.
    pub const fn end(self) -> Addr {
        self.addr.offset(self.size_bytes)
    }

    /// Whether `addr` lies in the span.
    pub const fn contains(self, addr: Addr) -> bool {
        addr.0 >= self.addr.0 && addr.0 - self.addr.0 < self.size_bytes
    }

    /// Whether all of the other span lies in this one.
    pub const fn covers(self, other: Span) -> bool {
        self.addr.0 <= other.addr.0 && other.end().0 <= self.end().0
    }

    /// Whether the two spans share an address.
    pub const fn overlaps(self, other: Span) -> bool {
        self.addr.0 < other.end().0 && other.addr.0 < self.end().0
    }
}

/// A number of bytes that prints as people read it: `512 bytes`, `20.00 MiB`, `1.35 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        if bytes <= KIB {
            return f.pad(&format!("{bytes} bytes"));
        }
        let units = [(KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB")];
        // The first unit in which it does not come to a thousand and more, as it is shown: what is
        // a hundredth short of the next unit is shown in that.
        let shown = |unit: u64| (bytes as f64 / unit as f64 * 100.0).round() / 100.0;
        let found = units.into_iter().find(|&(unit, _)| shown(unit) < 1024.0);
        let (unit, name) = found.unwrap_or((GIB, "GiB"));
        f.pad(&format!("{:.2} {name}", bytes as f64 / unit as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_as_people_read_them() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!(text(1024), "1024 bytes");
        assert_eq!(text(1025), "1.00 KiB");
        assert_eq!(text(20 * MIB), "20.00 MiB");
        assert_eq!(text(3 * GIB / 2), "1.50 GiB");
        assert_eq!([MIB, GIB, 1024 * GIB].map(text), ["1.00 MiB", "1.00 GiB", "1024.00 GiB"]);
        assert_eq!(text(GIB - 1), "1.00 GiB", "1024.00 MiB would be no number of MiB");
        assert_eq!(text(GIB - 6 * KIB), "1023.99 MiB");
        assert_eq!(format!("{:>12}|", Bytes(512)), "   512 bytes|");
    }

    #[test]
    fn spans_know_what_they_hold() {
        let span = Span::new(Addr(100), 10);
        assert!(span.contains(Addr(100)) && span.contains(Addr(109)));
        assert!(!span.contains(Addr(99)) && !span.contains(Addr(110)));
        assert!(span.overlaps(Span::new(Addr(109), 1)));
        assert!(!span.overlaps(Span::new(Addr(110), 5)));
    }
}
