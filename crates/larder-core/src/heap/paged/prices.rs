//! Prices: what calls about pages cost, in nanoseconds, as measured on an H200 with driver 580 and
//! CUDA 13.0. They are about the same for every size of page. The simulated GPU counts with them
//! too.

/// To create a page.
pub const CREATE_NS: u64 = 13_500;
/// To map a page.
pub const MAP_NS: u64 = 1_800;
/// To give access to a mapped page.
pub const ACCESS_NS: u64 = 36_000;
/// To unmap a page.
pub const UNMAP_NS: u64 = 22_000;
/// To reserve addresses.
pub const RESERVE_NS: u64 = 11_500;

/// To bring a page to its home.
pub(super) const HOME_PAGE_NS: u64 = CREATE_NS + MAP_NS + ACCESS_NS;
/// To show a page in a view.
pub(super) const SHOWN_PAGE_NS: u64 = MAP_NS + ACCESS_NS;
/// To take a page out of a view.
pub(super) const HIDDEN_PAGE_NS: u64 = UNMAP_NS;
