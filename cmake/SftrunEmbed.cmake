# Files as strings of the program: sftrun_embed(TARGET NAMESPACE NAME FILE [NAME FILE …]) defines `extern const std::string_view NAME` in
# the namespace for each file. An empty FILE gives an empty string. A changed file is embedded again by the next build.
function(sftrun_embed target namespace)
  set(code "#include <string_view>\n\nnamespace ${namespace} {\n")
  set(rest ${ARGN})
  while(rest)
    list(POP_FRONT rest name file)
    set(content "")
    if(file)
      file(READ "${file}" content)
      string(REGEX REPLACE "\n(//|/\\*)# sourceMappingURL=[^\n]*" "" content "${content}")  # source maps are other files
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    endif()
    string(APPEND code "extern const std::string_view ${name};\n"
                       "const std::string_view ${name} = R\"__embedded__(${content})__embedded__\";\n")
  endwhile()
  string(APPEND code "}  // namespace ${namespace}\n")
  set(source ${CMAKE_BINARY_DIR}/embedded/${target}.cpp)
  set(written "")
  if(EXISTS ${source})
    file(READ ${source} written)
  endif()
  if(NOT "${written}" STREQUAL "${code}")  # an unchanged file is not compiled again
    file(WRITE ${source} "${code}")
  endif()
  target_sources(${target} PRIVATE ${source})
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
endfunction()
