# The files of `cmake --install` and of the Debian package. The program finds its data relative to itself
# (models/files/data_folder.h), so any prefix works.
include(GNUInstallDirs)
install(TARGETS kvtwin RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set(data ${CMAKE_INSTALL_DATADIR}/kvtwin)
install(DIRECTORY models/llm models/device models/node models/measured models/tiny DESTINATION ${data}/models
        FILES_MATCHING PATTERN "*.textproto" PATTERN "*.csv" PATTERN "*.json" PATTERN "*.safetensors")
install(DIRECTORY traces/data DESTINATION ${data}/traces)
# (scenarios/suites/vllm is not installed: the runs that it reproduces are part of the tests.)
install(DIRECTORY scenarios/shipped scenarios/methods scenarios/quality scenarios/studies DESTINATION ${data}/scenarios
        FILES_MATCHING PATTERN "*.textproto" PATTERN "*.csv" PATTERN "*.kvtrace")
install(DIRECTORY scenarios/suites DESTINATION ${data}/scenarios
        FILES_MATCHING PATTERN "*.textproto" PATTERN "*.csv" PATTERN "*.kvtrace" PATTERN "suites/vllm" EXCLUDE)
install(FILES scenarios/serve/grafana_dashboard.json DESTINATION ${data})
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The program prints its manual page and completions.
set(shell ${PROJECT_BINARY_DIR}/shell)
add_custom_command(OUTPUT ${shell}/kvtwin.1 ${shell}/kvtwin ${shell}/_kvtwin
  COMMAND ${CMAKE_COMMAND} -E make_directory ${shell}
  COMMAND kvtwin man > ${shell}/kvtwin.1
  COMMAND kvtwin completion bash > ${shell}/kvtwin
  COMMAND kvtwin completion zsh > ${shell}/_kvtwin
  DEPENDS kvtwin VERBATIM)
add_custom_target(kvtwin_shell_files ALL DEPENDS ${shell}/kvtwin.1)
install(FILES ${shell}/kvtwin.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${shell}/kvtwin DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
# zsh itself searches below /usr/local. Below /usr, Debian's zsh searches the folder of packages.
install(CODE "set(functions site-functions)
if(CMAKE_INSTALL_PREFIX MATCHES \"/usr$\")
  set(functions vendor-completions)
endif()
file(INSTALL \"${shell}/_kvtwin\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/zsh/\${functions}\")")

set(CPACK_PACKAGE_NAME kvtwin)
set(CPACK_PACKAGE_VENDOR "the kvtwin authors")
set(CPACK_PACKAGE_CONTACT "the kvtwin authors <kvtwin@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Predict and measure what a KV-cache policy does to LLM serving")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(KVTWIN_HAVE_PYTHON)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-numpy")
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-pandas, python3-distributed")
endif()
include(CPack)
