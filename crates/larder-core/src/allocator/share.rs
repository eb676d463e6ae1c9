//! Sharing: blocks for other processes, blocks of other processes, and peers.
//!
//! A block of a plain segment is shared as its whole segment and an offset; one of an expandable
//! segment as the pages that it lies on and an offset; so is one in a view. Sharing keeps nothing
//! alive: whoever shares a block frees it when the others are done with it.

use std::collections::HashMap;
use std::process;

use crate::allocator::Allocator;
use crate::allocator::share_bytes::ShareBytes;
use crate::device::{Device, DeviceError, SharedPage};
use crate::error::Error;
use crate::heap::space::homes::PagesBehind;
use crate::types::{Addr, DeviceIndex, PageHandle, Span};

/// What another process needs to use a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// What [`Allocator::open_shared`] takes there, in PyTorch's format.
    pub bytes: Vec<u8>,
    /// Where the block starts in what it opens.
    pub offset_bytes: u64,
}

/// What this allocator has made known to others: pages with a handle out, and peers.
#[derive(Default)]
pub(super) struct Exports {
    pages: HashMap<PageHandle, SharedPage>,
    peers: Vec<DeviceIndex>,
}

impl Exports {
    /// The devices that may use this one's memory.
    pub(super) fn peers(&self) -> &[DeviceIndex] {
        &self.peers
    }

    /// The handle of a page, which it keeps until the page goes.
    fn page(&mut self, device: &dyn Device, page: PageHandle) -> Result<SharedPage, DeviceError> {
        if let Some(&shared) = self.pages.get(&page) {
            return Ok(shared);
        }
        let shared = device.export_page(page)?;
        self.pages.insert(page, shared);
        Ok(shared)
    }

    /// The page is about to go, and its handle with it.
    pub(super) fn close(&mut self, device: &dyn Device, page: PageHandle) {
        if let Some(shared) = self.pages.remove(&page) {
            // A descriptor that cannot be closed is no reason to keep the memory.
            let _ = device.unexport_page(shared);
        }
    }
}

/// What is open of other processes' memory.
#[derive(Default)]
pub(super) struct Imports {
    open: Vec<Import>,
}

/// Memory of another process, by the bytes that name it.
struct Import {
    bytes: Vec<u8>,
    /// How often it was opened and not closed.
    count: usize,
    /// Where it is here; of a plain allocation only the first address is known.
    span: Span,
    /// Each with its size, in order; empty for a plain allocation.
    pages: Vec<(PageHandle, u64)>,
}

impl Allocator {
    /// What another process needs to use the live block at `addr`. The caller keeps the block
    /// until the others have closed it.
    pub fn share(&self, addr: Addr) -> Result<Shared, Error> {
        let mut inner = self.lock_as_is();
        let block = inner.heap.live(addr).ok_or(Error::UnknownAddress(addr))?;
        if let Some(base) = inner.heap.space().base(block) {
            let handle = self.device.export_alloc(base.addr);
            let handle = handle.map_err(Error::device("share memory"))?;
            let bytes = ShareBytes::Plain(handle).write();
            return Ok(Shared { bytes, offset_bytes: addr.0 - base.addr.0 });
        }
        let behind = inner.heap.space().pages_behind(block);
        let PagesBehind { span, pages } = behind.expect("a live block has pages behind it");
        let pages: Result<_, _> = pages
            .iter()
            .map(|&(page, size_bytes)| Ok((inner.exports.page(&*self.device, page)?, size_bytes)))
            .collect();
        let pages = pages.map_err(Error::device("share a page"))?;
        let bytes = ShareBytes::Pages { pid: process::id(), pages }.write();
        Ok(Shared { bytes, offset_bytes: addr.0 - span.addr.0 })
    }

    /// Opens what another process shares, and says where it starts here. The same bytes opened
    /// again give the same address; each opening needs a [`Allocator::close_shared`].
    pub fn open_shared(&self, bytes: &[u8]) -> Result<Addr, Error> {
        let mut imports = self.imports.lock().expect("no thread panicked while it opened memory");
        if let Some(import) = imports.open.iter_mut().find(|import| import.bytes == bytes) {
            import.count += 1;
            return Ok(import.span.addr);
        }
        let (span, pages) = match ShareBytes::read(bytes).map_err(Error::BadShare)? {
            ShareBytes::Plain(handle) => {
                let addr = self.device.import_alloc(handle);
                let addr = addr.map_err(Error::device("open shared memory"))?;
                (Span::new(addr, 0), Vec::new())
            }
            ShareBytes::Pages { pid, pages } => self.import_pages(pid, &pages)?,
        };
        imports.open.push(Import { bytes: bytes.to_vec(), count: 1, span, pages });
        Ok(span.addr)
    }

    /// Closes what [`Allocator::open_shared`] opened at `addr`. With the last closing the memory
    /// goes, once the work of the device so far has finished.
    pub fn close_shared(&self, addr: Addr) -> Result<(), Error> {
        let mut imports = self.imports.lock().expect("no thread panicked while it closed memory");
        let at = imports.open.iter().position(|import| import.span.addr == addr);
        let at = at.ok_or(Error::NotOpened(addr))?;
        if imports.open[at].count > 1 {
            imports.open[at].count -= 1;
            return Ok(());
        }
        self.device.wait_device().map_err(Error::device("wait for the device"))?;
        let Import { span, pages, .. } = &imports.open[at];
        if pages.is_empty() {
            let closed = self.device.close_alloc(span.addr);
            closed.map_err(Error::device("close shared memory"))?;
            imports.open.swap_remove(at);
            return Ok(());
        }
        // From here on it is gone, whatever the device says: half of it may be unmapped.
        let Import { span, pages, .. } = imports.open.swap_remove(at);
        drop(imports);
        self.drop_import(span, &pages, pages.len()).map_err(Error::device("close shared pages"))
    }

    /// Gets hold of pages of another process and maps them one behind the other.
    fn import_pages(
        &self,
        pid: u32,
        shared: &[(SharedPage, u64)],
    ) -> Result<(Span, Vec<(PageHandle, u64)>), Error> {
        let device = &*self.device;
        let size_bytes = shared.iter().map(|(_, page_bytes)| page_bytes).sum();
        let addr = device.reserve(size_bytes).map_err(Error::device("reserve addresses"))?;
        let span = Span::new(addr, size_bytes);
        let peers = self.look().exports.peers().to_vec();
        let mut pages = Vec::with_capacity(shared.len());
        let mut mapped = 0;
        let result = (|| {
            for &(page, page_bytes) in shared {
                let page = device.import_page(page, pid, page_bytes);
                pages.push((page.map_err(Error::device("open a shared page"))?, page_bytes));
            }
            for (place, page) in places(addr, &pages) {
                device.map(place, page).map_err(Error::device("map a shared page"))?;
                mapped += 1;
            }
            device.set_access(span).map_err(Error::device("give access to shared pages"))?;
            for peer in peers {
                let opened = device.set_peer_access(span, peer);
                opened.map_err(Error::device("give a peer access to shared pages"))?;
            }
            Ok(())
        })();
        if let Err(error) = result {
            // The first reason is the one worth telling.
            let _ = self.drop_import(span, &pages, mapped);
            return Err(error);
        }
        Ok((span, pages))
    }

    /// Takes down what was imported: all that can go goes, and the first refusal is returned.
    fn drop_import(
        &self,
        span: Span,
        pages: &[(PageHandle, u64)],
        mapped: usize,
    ) -> Result<(), DeviceError> {
        let mut first = Ok(());
        for (index, (place, page)) in places(span.addr, pages).enumerate() {
            if index < mapped {
                first = first.and(self.device.unmap(place));
            }
            first = first.and(self.device.release_page(page));
        }
        first.and(self.device.unreserve(span))
    }

    /// Lets another device of this process use this one's memory, what there is and what will be.
    pub fn open_to_peer(&self, peer: DeviceIndex) -> Result<(), Error> {
        let mut inner = self.lock_as_is();
        if peer == self.device.properties().index || inner.exports.peers.contains(&peer) {
            return Ok(());
        }
        let refused = Error::device("open memory to a peer");
        self.device.open_to_peer(peer).map_err(refused)?;
        for span in inner.heap.mapped_pages() {
            let opened = self.device.set_peer_access(span, peer);
            opened.map_err(Error::device("give a peer access to memory"))?;
        }
        inner.exports.peers.push(peer);
        Ok(())
    }
}

/// Pages one behind the other from an address on: where each is.
fn places(
    addr: Addr,
    pages: &[(PageHandle, u64)],
) -> impl Iterator<Item = (Span, PageHandle)> + '_ {
    pages.iter().scan(addr, |next, &(page, page_bytes)| {
        let place = Span::new(*next, page_bytes);
        *next = place.end();
        Some((place, page))
    })
}
