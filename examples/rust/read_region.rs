//! Print what regions hold, one JSON object a line, through the C library.
//!
//!     rustc read_region.rs -L $(pkg-config --variable=libdir libhamiregion)
//!     ./read_region FILE...

use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};

const HR_READ: u32 = 0;
const HR_LAYOUTS: u32 = 5;

#[repr(C)]
struct Region {
    _private: [u8; 0],
}

/// As region.h has them; csrc/abi.txt lists every offset.
#[repr(C)]
struct Snapshot {
    taken_at_ns: u64,
    owner_pid: u64,
    last_kernel_time: u64,
    semaphore: u64,
    settled: u32,
    span: u32,
    shown: u32,
    device_num: u32,
    proc_num: i32,
    priority: i32,
    utilization_switch: i32,
    recent_kernel: i32,
    code: i32,
    layout: u32,
}

#[repr(C)]
struct Process {
    pid: i32,
    host_pid: i32,
    status: i32,
    settled: u32,
}

#[repr(C)]
struct Usage {
    total: u64,
    kinds: [u64; 3],
    offset: u64,
    monitor: u64,
    sm: u64,
    enc: u64,
    dec: u64,
}

#[repr(C)]
struct Device {
    limit: u64,
    sm_limit: u64,
    sums: Usage,
    uuid: [c_char; 96],
}

#[link(name = "hamiregion")]
extern "C" {
    fn hr_open(path: *const c_char, flags: u32, layout: u32, out: *mut *mut Region) -> c_int;
    fn hr_snapshot(region: *mut Region, buffer: *mut c_void, bytes: usize) -> c_int;
    fn hr_free(region: *mut Region);
}

const LAYOUTS: [&str; 5] = ["unversioned-no-util", "unversioned", "1.1", "1.1-postinit", "1.2"];
/// 1,024 processes on 16 devices.
const MAX_BYTES: usize = std::mem::size_of::<Snapshot>()
    + 16 * std::mem::size_of::<Device>()
    + 1024 * (std::mem::size_of::<Process>() + 16 * std::mem::size_of::<Usage>());

/// A snapshot as the library has written it; the words are 64 bits wide, so all is aligned.
struct View<'a> {
    head: &'a Snapshot,
    words: &'a [u64],
}

impl<'a> View<'a> {
    fn at<T>(&self, offset: usize) -> &'a T {
        let end = offset + std::mem::size_of::<T>();
        assert!(end <= std::mem::size_of_val(self.words) && offset % std::mem::align_of::<T>() == 0);
        // Safe: within the buffer, aligned, and T is made of numbers only.
        unsafe { &*(self.words.as_ptr().cast::<u8>().add(offset).cast::<T>()) }
    }

    fn device(&self, index: usize) -> &'a Device {
        self.at(std::mem::size_of::<Snapshot>() + index * std::mem::size_of::<Device>())
    }

    fn process_offset(&self, index: usize) -> usize {
        let span = self.head.span as usize;
        let bytes = std::mem::size_of::<Process>() + span * std::mem::size_of::<Usage>();
        let first = std::mem::size_of::<Snapshot>() + span * std::mem::size_of::<Device>();
        first + index * bytes
    }

    fn process(&self, index: usize) -> &'a Process {
        self.at(self.process_offset(index))
    }

    fn usage(&self, index: usize, device: usize) -> &'a Usage {
        let first = self.process_offset(index) + std::mem::size_of::<Process>();
        self.at(first + device * std::mem::size_of::<Usage>())
    }

    fn shown(&self) -> Vec<usize> {
        (0..self.head.span as usize).filter(|device| self.head.shown >> device & 1 != 0).collect()
    }
}

fn or_null<T: ToString>(is_there: bool, value: T) -> String {
    if is_there { value.to_string() } else { "null".to_string() }
}

fn quoted(uuid: &[c_char; 96]) -> String {
    // Safe: the library takes only uuids with a NUL at their end.
    let text = unsafe { CStr::from_ptr(uuid.as_ptr()) }.to_string_lossy();
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    or_null(!text.is_empty(), format!("\"{escaped}\""))
}

fn device_text(view: &View, index: usize) -> String {
    let device = view.device(index);
    let sm_limit = device.sm_limit;
    format!(
        "{{\"index\": {index}, \"uuid\": {}, \"memory_limit_bytes\": {}, \"memory_used_bytes\": {}, \
         \"sm_limit_percent\": {}, \"sm_util_percent\": {}}}",
        quoted(&device.uuid),
        or_null(device.limit != 0, device.limit),
        device.sums.total,
        or_null(sm_limit > 0 && sm_limit < 100, sm_limit),
        device.sums.sm
    )
}

fn process_text(view: &View, index: usize) -> String {
    let process = view.process(index);
    let used: Vec<String> =
        view.shown().iter().map(|&device| view.usage(index, device).total.to_string()).collect();
    format!(
        "{{\"pid\": {}, \"host_pid\": {}, \"status\": {}, \"memory_used_bytes\": [{}]}}",
        process.pid,
        or_null(process.host_pid != 0, process.host_pid),
        process.status,
        used.join(", ")
    )
}

fn read_region(path: &str, buffer: &mut [u64]) -> Result<String, c_int> {
    let name = CString::new(path).expect("a path has no NUL");
    let mut region = std::ptr::null_mut();
    // Safe: the handle is freed once, and the buffer is as large as it is said to be.
    let code = unsafe {
        let mut code = hr_open(name.as_ptr(), HR_READ, HR_LAYOUTS, &mut region);
        if code >= 0 {
            code = hr_snapshot(region, buffer.as_mut_ptr().cast(), std::mem::size_of_val(buffer));
        }
        hr_free(region);
        code
    };
    if code < 0 {
        return Err(code);
    }
    let head = unsafe { &*buffer.as_ptr().cast::<Snapshot>() };
    let view = View { head, words: buffer };
    let devices: Vec<String> = view.shown().iter().map(|&at| device_text(&view, at)).collect();
    let processes: Vec<String> =
        (0..head.proc_num as usize).map(|at| process_text(&view, at)).collect();
    Ok(format!(
        "{{\"layout\": \"{}\", \"settled\": {}, \"priority\": {}, \"owner_pid\": {}, \
         \"devices\": [{}], \"processes\": [{}]}}",
        LAYOUTS[head.layout as usize],
        head.settled != 0,
        head.priority,
        head.owner_pid,
        devices.join(", "),
        processes.join(", ")
    ))
}

fn main() {
    let mut buffer = vec![0u64; MAX_BYTES / 8];
    for path in std::env::args().skip(1) {
        match read_region(&path, &mut buffer) {
            Ok(text) => println!("{text}"),
            Err(code) => {
                eprintln!("{path}: error {code} (enum hr_code)");
                std::process::exit(1);
            }
        }
    }
}
