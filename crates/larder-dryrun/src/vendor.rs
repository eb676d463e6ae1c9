//! The vendor's own libraries, which the program has loaded by then, behind the functions of theirs
//! that stand here.

use std::ffi::{CStr, c_void};

/// The function of this name in the first of these libraries that is loaded.
pub(crate) fn function(libraries: &[&CStr], name: &CStr) -> Option<*mut c_void> {
    libraries.iter().find_map(|library| {
        // SAFETY: the name ends in a zero; a library that is not loaded is not loaded by this.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: the handle is one of a library that stays loaded, since nobody closes it.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    })
}
