# Finds the dependencies of kvtwin. ./dev lists their Debian packages and installs them.
#
# kvtwin_optional(NAME FOUND HINT): turns a three-state switch and a search result into KVTWIN_HAVE_<NAME>,
# or stops with a remedy.
function(kvtwin_optional name found hint)
  set(have OFF)
  if(NOT KVTWIN_${name} STREQUAL "OFF")
    if(found)
      set(have ON)
    elseif(KVTWIN_${name} STREQUAL "ON")
      message(FATAL_ERROR "KVTWIN_${name}=ON, but ${hint}, or configure with -DKVTWIN_${name}=OFF.")
    else()
      message(STATUS "KVTWIN_${name}: off, because ${hint}.")
    endif()
  endif()
  set(KVTWIN_HAVE_${name} ${have} PARENT_SCOPE)
endfunction()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Boost 1.74 REQUIRED)            # Boost.Graph, headers only
find_package(Protobuf REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tl-expected REQUIRED)           # Debian: libexpected-dev
find_package(yaml-cpp REQUIRED)              # Debian: libyaml-cpp-dev (foreign profiles)

# Debian's libsimgrid-dev (3.32) has no CMake package, only a pkg-config file.
if(NOT KVTWIN_SIMGRID STREQUAL "OFF")
  pkg_check_modules(SimGrid IMPORTED_TARGET simgrid>=3.32)
endif()
kvtwin_optional(SIMGRID "${SimGrid_FOUND}" "SimGrid >= 3.32 was not found: install libsimgrid-dev")

if(NOT KVTWIN_ARCHIVE STREQUAL "OFF")
  find_package(LibArchive)
endif()
kvtwin_optional(ARCHIVE "${LibArchive_FOUND}" "libarchive was not found: install libarchive-dev")

if(NOT KVTWIN_SQLITE STREQUAL "OFF")
  find_package(SQLite3)
endif()
kvtwin_optional(SQLITE "${SQLite3_FOUND}" "SQLite was not found, so there is no kvtwin sweep: install libsqlite3-dev")

if(NOT KVTWIN_CURL STREQUAL "OFF")
  find_package(CURL)
endif()
kvtwin_optional(CURL "${CURL_FOUND}" "libcurl was not found, so there is no kvtwin observe: install libcurl4-openssl-dev")

# Debian: libmsgpack-dev's pkg-config file has had two names.
set(serve_found OFF)
if(NOT KVTWIN_SERVE STREQUAL "OFF")
  pkg_check_modules(ZeroMQ IMPORTED_TARGET libzmq)
  pkg_search_module(Msgpack IMPORTED_TARGET msgpack-c msgpack)
  find_path(KVTWIN_BEAST boost/beast/http.hpp)
  if(ZeroMQ_FOUND AND Msgpack_FOUND AND KVTWIN_BEAST)
    set(serve_found ON)
  endif()
endif()
kvtwin_optional(SERVE "${serve_found}"
  "Boost.Beast, ZeroMQ or msgpack was not found, so there is no kvtwin serve: install libboost-dev, libzmq3-dev and libmsgpack-dev")
# The interpreter of the system, whose packages ./dev installs; -DPython_EXECUTABLE= chooses another. A module with
# sanitizers would need an interpreter with them.
set(python_found OFF)
if(NOT KVTWIN_PYTHON STREQUAL "OFF" AND NOT KVTWIN_SANITIZE AND NOT KVTWIN_FUZZ)
  if(NOT Python_EXECUTABLE AND EXISTS /usr/bin/python3)
    set(Python_EXECUTABLE /usr/bin/python3)
  endif()
  find_package(Python 3.9 COMPONENTS Interpreter Development.Module NumPy QUIET)
  if(Python_FOUND)
    find_package(pybind11 2.10 QUIET)
    set(python_found ${pybind11_FOUND})
  endif()
endif()
kvtwin_optional(PYTHON "${python_found}"
  "there are no pybind11 and NumPy for it, or this is a sanitizer build: install pybind11-dev, python3-dev and python3-numpy")

set(web_found OFF)
if(NOT KVTWIN_WEB STREQUAL "OFF")
  find_program(KVTWIN_NODE NAMES node nodejs)
  if(KVTWIN_NODE AND EXISTS ${PROJECT_SOURCE_DIR}/reports/web/node_modules/esbuild)
    set(web_found ON)
  endif()
endif()
kvtwin_optional(WEB "${web_found}"
  "there is no Node.js or no reports/web/node_modules, so the report page is not built again and compared: run npm ci in reports/web")

if(NOT KVTWIN_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
endif()
kvtwin_optional(CUDA "${CMAKE_CUDA_COMPILER}" "no CUDA compiler was found: put nvcc on PATH or set CUDACXX")
